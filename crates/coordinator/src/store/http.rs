//! Calls to etcd's JSON gateway: one of several endpoints, each call bounded in time.

use std::time::Duration;

use samite_types::{Clock, Error, ErrorKind, Result, SystemClock};
use serde_json::Value;
use ureq::Agent;

/// How long one endpoint may take over one call.
const ENDPOINT_TIMEOUT: Duration = Duration::from_millis(250);
/// How long one call may take in all.
const CALL_TIMEOUT: Duration = Duration::from_millis(600);
/// Longest answer: a state in base64, and what is around it.
const ANSWER_LEN_MAX: u64 = 8 << 20;

/// The endpoints of one etcd cluster.
#[derive(Debug)]
pub(super) struct Endpoints {
    agent: Agent,
    urls: Vec<String>,
    /// The one that answered last.
    preferred: usize,
}

impl Endpoints {
    /// `urls` as `http://HOST:PORT`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: none, or one that is not of this form.
    pub(super) fn new(urls: &[String]) -> Result<Self> {
        let invalid = |what: String| Error::new(ErrorKind::Invalid, what);
        if urls.is_empty() {
            return Err(invalid("etcd: no endpoint".into()));
        }
        let mut trimmed = Vec::new();
        for url in urls {
            let url = url.trim_end_matches('/');
            let rest = url.strip_prefix("http://").unwrap_or_default();
            if rest.is_empty() || rest.contains('/') {
                return Err(invalid(format!("etcd endpoint {url:?}: expected http://HOST:PORT")));
            }
            trimmed.push(url.to_owned());
        }
        let config = Agent::config_builder()
            .timeout_global(Some(ENDPOINT_TIMEOUT))
            .http_status_as_error(false)
            // A proxy between a coordinator and its store helps nobody.
            .proxy(None)
            .build();
        Ok(Self { agent: config.into(), urls: trimmed, preferred: 0 })
    }

    /// POSTs `body` to `path` at an endpoint that answers.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], with what the last endpoint said: none has answered in time, so the effect is not known.
    pub(super) fn call(&mut self, path: &str, body: &Value) -> Result<Value> {
        let body = body.to_string();
        let until = SystemClock.monotonic() + CALL_TIMEOUT;
        let mut failed = String::new();
        for offset in 0..self.urls.len() {
            let index = (self.preferred + offset) % self.urls.len();
            match self.post(index, path, &body) {
                Ok(answer) => {
                    self.preferred = index;
                    return Ok(answer);
                }
                Err(words) => failed = format!("{}: {words}", self.urls[index]),
            }
            if SystemClock.monotonic() >= until {
                // The next call begins where this one has not come to.
                self.preferred = (index + 1) % self.urls.len();
                break;
            }
        }
        Err(Error::new(ErrorKind::Unavailable, format!("etcd {failed}")))
    }

    fn post(&self, index: usize, path: &str, body: &str) -> std::result::Result<Value, String> {
        let url = format!("{}{path}", self.urls[index]);
        let sent = self.agent.post(url).content_type("application/json").send(body);
        let mut response = sent.map_err(|error| error.to_string())?;
        let text = response.body_mut().with_config().limit(ANSWER_LEN_MAX).read_to_string();
        let text = text.map_err(|error| error.to_string())?;
        if !response.status().is_success() {
            let words: String = text.chars().take(200).collect();
            return Err(format!("{} {words}", response.status()));
        }
        serde_json::from_str(&text).map_err(|error| format!("its answer: {error}"))
    }
}

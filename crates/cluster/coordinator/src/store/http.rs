//! Calls to etcd's JSON gateway: one of several endpoints, each call bounded in time.

use std::time::Duration;

use samite_types::{Clock, Error, ErrorKind, Result, SystemClock};
use serde_json::Value;
use ureq::Agent;

use super::tls::{self, EtcdTls};

/// How long one endpoint may take over one call.
const ENDPOINT_TIMEOUT: Duration = Duration::from_millis(250);
/// How long one call may take in all.
const CALL_TIMEOUT: Duration = Duration::from_millis(600);
/// Longest answer: a state in base64, and the JSON around it.
const ANSWER_LEN_MAX: u64 = 8 << 20;

/// The endpoints of one etcd cluster.
#[derive(Debug)]
pub(super) struct EtcdEndpoints {
    agent: Agent,
    urls: Vec<String>,
    /// The endpoint that answered last.
    preferred: usize,
}

impl EtcdEndpoints {
    /// `urls` as `http://HOST:PORT`, or all of them as `https://HOST:PORT` with `tls`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: none, or one that is not of this form.
    pub(super) fn new(urls: &[String], tls: Option<&EtcdTls>) -> Result<Self> {
        let invalid = |what: String| Error::new(ErrorKind::Invalid, what);
        if urls.is_empty() {
            return Err(invalid("etcd: no endpoint".into()));
        }
        let mut trimmed = Vec::new();
        for url in urls {
            let url = url.trim_end_matches('/');
            let rest = match url.split_once("://") {
                Some(("http", rest)) if tls.is_none() => rest,
                Some(("https", rest)) if tls.is_some() => rest,
                Some(("http", _)) => {
                    return Err(invalid(format!("etcd endpoint {url:?}: --etcd-ca is for https")));
                }
                Some(("https", _)) => {
                    let words = "needs --etcd-ca: who has signed its certificate";
                    return Err(invalid(format!("etcd endpoint {url:?}: {words}")));
                }
                _ => "",
            };
            if rest.is_empty() || rest.contains('/') {
                let words = "expected http://HOST:PORT or https://HOST:PORT";
                return Err(invalid(format!("etcd endpoint {url:?}: {words}")));
            }
            trimmed.push(url.to_owned());
        }
        let mut config = Agent::config_builder()
            .timeout_global(Some(ENDPOINT_TIMEOUT))
            .http_status_as_error(false)
            // A proxy between a coordinator and its store helps nobody.
            .proxy(None);
        if let Some(tls) = tls {
            config = config.tls_config(tls.config()?);
        }
        Ok(Self { agent: config.build().into(), urls: trimmed, preferred: 0 })
    }

    /// POSTs `body` to `path` at an endpoint that answers.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], with the words of the last endpoint: none has answered in time,
    /// so the effect is not known.
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
        let mut response = sent.map_err(|error| words(&error))?;
        let text = response.body_mut().with_config().limit(ANSWER_LEN_MAX).read_to_string();
        let text = text.map_err(|error| words(&error))?;
        if !response.status().is_success() {
            let words: String = text.chars().take(200).collect();
            return Err(format!("{} {words}", response.status()));
        }
        serde_json::from_str(&text).map_err(|error| format!("its answer: {error}"))
    }
}

fn words(error: &ureq::Error) -> String {
    tls::refusal(error).unwrap_or_else(|| error.to_string())
}

/// Waits until one of these endpoints is there, whether or not its cluster has a quorum.
///
/// # Errors
/// [`ErrorKind::Invalid`]: they are none, or one of them and this side do not trust each other. [`ErrorKind::Unavailable`]: none is there after `patience`.
pub fn check_etcd(urls: &[String], tls: Option<&EtcdTls>, patience: Duration) -> Result<()> {
    let endpoints = EtcdEndpoints::new(urls, tls)?;
    let until = SystemClock.monotonic() + patience;
    loop {
        let mut failed = Error::new(ErrorKind::Unavailable, "etcd");
        for url in &endpoints.urls {
            let answer = endpoints.agent.get(format!("{url}/version")).call();
            match answer.and_then(|mut answer| answer.body_mut().read_to_string()) {
                Ok(_) => return Ok(()),
                Err(error) => {
                    let refused = tls::refusal(&error);
                    let is_final = refused.is_some();
                    let kind = if is_final { ErrorKind::Invalid } else { ErrorKind::Unavailable };
                    let words = refused.unwrap_or_else(|| error.to_string());
                    failed = Error::new(kind, format!("etcd {url}: {words}"));
                    if is_final {
                        return Err(failed);
                    }
                }
            }
        }
        if SystemClock.monotonic() >= until {
            return Err(failed);
        }
        std::thread::sleep(ENDPOINT_TIMEOUT / 4);
    }
}

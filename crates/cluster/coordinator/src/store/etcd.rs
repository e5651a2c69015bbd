//! The state in etcd, by the JSON gateway that every etcd serves beside its gRPC.
//!
//! Two keys below the cluster's prefix: `leader`, a [`LeaderSeat`], and `state`. Bytes travel in
//! base64, 64-bit numbers as strings, and fields with their default values are left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use samite_types::{Clock, Error, ErrorKind, Result, SystemClock};
use samite_wire::membership::LeaderAddress;
use serde_json::{Value, json};

use super::StateStore;
use super::election::{self, ElectionStep, InstanceRole, KeyElection, SwapResult};
use super::http::EtcdEndpoints;
use super::tls::EtcdTls;
use crate::ClusterTiming;
use crate::leader_key::{LeaderSeat, ObservedKey};

/// How to reach etcd, and under which name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `http://HOST:PORT`, or `https://HOST:PORT` with `tls`, of each member that may be asked; one that answers is enough.
    pub endpoints: Vec<String>,
    /// Certificates for https.
    pub tls: Option<EtcdTls>,
    /// Begins the keys of this cluster, and of no other.
    pub prefix: String,
    /// Where this instance is reached.
    pub leader: LeaderAddress,
    /// Drawn at random for this instance.
    pub instance: u64,
    /// Times.
    pub timing: ClusterTiming,
}

/// Keeps the state in etcd, and takes part in the election of the instance that may change it.
#[derive(Debug)]
pub struct EtcdStore {
    endpoints: EtcdEndpoints,
    leader_key: String,
    state_key: String,
    election: KeyElection,
    /// Revision of the state that this instance decides on; 0: there is none yet.
    state_revision: u64,
}

impl EtcdStore {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: the endpoints are none.
    pub fn new(config: &EtcdConfig) -> Result<Self> {
        let key = |name: &str| BASE64.encode(format!("{}{name}", config.prefix));
        Ok(Self {
            endpoints: EtcdEndpoints::new(&config.endpoints, config.tls.as_ref())?,
            leader_key: key("leader"),
            state_key: key("state"),
            election: KeyElection::new(config.leader.clone(), config.instance, config.timing),
            state_revision: 0,
        })
    }

    fn read(&mut self, key: &str) -> Result<(u64, Vec<u8>)> {
        let answer = self.endpoints.call("/v3/kv/range", &json!({ "key": key }))?;
        revision_and_value(&answer)
    }

    fn campaign_once(&mut self) -> bool {
        let sent = SystemClock.monotonic();
        match self.election.next(sent) {
            ElectionStep::Rest => false,
            ElectionStep::Read => {
                let key = self.leader_key.clone();
                let read = self.read(&key);
                let now = SystemClock.monotonic();
                match read {
                    Ok((revision, value)) => {
                        self.election.observed(now, observed(revision, &value))
                    }
                    Err(error) => {
                        tracing::debug!(%error, "read the leader key");
                        self.election.unreadable(now);
                    }
                }
                true
            }
            ElectionStep::Swap { expected, seat } => {
                let swapped = self.swap(expected, seat, None).unwrap_or_else(|error| {
                    tracing::debug!(%error, "write the leader key");
                    SwapResult::Unknown
                });
                self.election.swapped(sent, SystemClock.monotonic(), swapped);
                true
            }
        }
    }

    /// Writes the leader key, and with it a state if there is one, if nobody else has written them.
    fn swap(
        &mut self,
        expected: u64,
        seat: LeaderSeat,
        state: Option<&[u8]>,
    ) -> Result<SwapResult> {
        let seat = serde_json::to_vec(&seat)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("leader key: {error}")))?;
        let mut compare = vec![unchanged(&self.leader_key, expected)];
        let mut success = vec![put(&self.leader_key, &seat)];
        if let Some(state) = state {
            compare.push(unchanged(&self.state_key, self.state_revision));
            success.push(put(&self.state_key, state));
        }
        let failure = [json!({ "requestRange": { "key": self.leader_key } })];
        let body = json!({ "compare": compare, "success": success, "failure": failure });
        let answer = self.endpoints.call("/v3/kv/txn", &body)?;
        if answer["succeeded"].as_bool() == Some(true) {
            let revision = number(&answer["header"]["revision"])?;
            return Ok(SwapResult::Done(revision));
        }
        let found = &answer["responses"][0];
        let range = found.get("response_range").or_else(|| found.get("responseRange"));
        let (revision, value) = revision_and_value(range.unwrap_or(&Value::Null))?;
        Ok(SwapResult::Lost(observed(revision, &value)))
    }

    fn deposed(&self) -> Error {
        Error::new(ErrorKind::Conflict, "another coordinator has taken over")
    }
}

impl StateStore for EtcdStore {
    fn campaign(&mut self) -> InstanceRole {
        election::take_steps(|| self.campaign_once());
        self.election.role(SystemClock.monotonic())
    }

    fn load(&mut self) -> Result<Option<Vec<u8>>> {
        let key = self.state_key.clone();
        let (revision, value) = self.read(&key)?;
        self.state_revision = revision;
        Ok((revision != 0).then_some(value))
    }

    fn save(&mut self, state: &[u8]) -> Result<()> {
        let sent = SystemClock.monotonic();
        let Some((expected, seat)) = self.election.renewal_now(sent) else {
            return Err(self.deposed());
        };
        let swapped = self.swap(expected, seat, Some(state));
        let ended = swapped.as_ref().cloned().unwrap_or(SwapResult::Unknown);
        self.election.swapped(sent, SystemClock.monotonic(), ended);
        match swapped? {
            SwapResult::Done(revision) => {
                self.state_revision = revision;
                Ok(())
            }
            SwapResult::Lost(_) | SwapResult::Unknown => Err(self.deposed()),
        }
    }

    fn challenge(&mut self) {
        self.election.challenge();
    }

    fn resign(&mut self) {
        let now = SystemClock.monotonic();
        let Some(revision) = self.election.resign(now) else { return };
        let body = json!({
            "compare": [unchanged(&self.leader_key, revision)],
            "success": [{ "requestDeleteRange": { "key": self.leader_key } }],
        });
        // Else the others wait until the key is old.
        if let Err(error) = self.endpoints.call("/v3/kv/txn", &body) {
            tracing::debug!(%error, "remove the leader key");
        }
    }
}

fn unchanged(key: &str, revision: u64) -> Value {
    let revision = revision.to_string();
    json!({ "key": key, "target": "MOD", "result": "EQUAL", "modRevision": revision })
}

fn put(key: &str, value: &[u8]) -> Value {
    json!({ "requestPut": { "key": key, "value": BASE64.encode(value) } })
}

fn number(value: &Value) -> Result<u64> {
    let parsed = value.as_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("etcd: {value} is no revision")))
}

/// Of the one key in an answer to a range; 0 and nothing when there is no such key.
fn revision_and_value(answer: &Value) -> Result<(u64, Vec<u8>)> {
    let pair = &answer["kvs"][0];
    if pair.is_null() {
        return Ok((0, Vec::new()));
    }
    let revision = number(&pair["mod_revision"])?;
    // An empty value is left out.
    let value = BASE64.decode(pair["value"].as_str().unwrap_or_default());
    let value = value.map_err(|error| Error::new(ErrorKind::Corrupt, format!("etcd: {error}")))?;
    Ok((revision, value))
}

fn observed(revision: u64, value: &[u8]) -> ObservedKey {
    ObservedKey { revision, seat: serde_json::from_slice(value).ok() }
}

//! A primary behind Sentinels, which report where it is. They are asked, and not subscribed to: a Sentinel publishes a
//! change up to a second late, and once.
//!
//! # Invariants
//!
//! 1. Another primary is accepted when [`Reports`] decide so, and it reports itself that it is one.

use std::{collections::BTreeMap, time::Duration};

use leasehold_protocol::{
    failure::Failure,
    place::Place,
    sentinel_reports::{Report, Reports, Verdict},
    slot::SLOTS,
    time::Time,
    topology::{Primary, Replica, View},
};
use parking_lot::Mutex;

use super::{Cluster, out_of_reach};
use crate::{
    error::Error,
    node::redis::{
        transport::{Endpoint, Link, RequiredKind, mistake_of, question},
        wire::{Error as WireError, ErrorKind as WireKind, Value, words},
    },
};

/// The most Sentinels that are asked: those of the url, and those that they name.
const MOST: usize = 64;

/// How long a Sentinel that does not answer, and those that it has named, are still asked.
const REMEMBERED: Duration = Duration::from_secs(300);

/// The question for the primary's address.
const ADDRESS: &str = "GET-MASTER-ADDR-BY-NAME";

/// The Sentinels of a service.
pub(super) struct Sentinels {
    /// The name of the primary on the Sentinels.
    pub(super) service: String,
    /// The Sentinels that each of them has named last.
    named: Mutex<BTreeMap<String, (Time, Vec<Endpoint>)>>,
    reports: Mutex<Reports>,
}

/// The report of the Sentinel at an address.
pub(super) type Said = (Box<str>, Report);

/// A Sentinel's report, and the addresses of the others that it knows.
type Answers = (Report, Vec<Place>);

/// Why there is no view.
pub(super) enum NoView {
    /// The server was not reached, or replied with something else.
    Failed(WireError),
    /// The server answered, and this error follows from it.
    Told(Error),
}

impl From<WireError> for NoView {
    fn from(error: WireError) -> Self {
        Self::Failed(error)
    }
}

impl Sentinels {
    pub(super) fn new(service: &str) -> Self {
        Self { service: service.into(), named: Mutex::default(), reports: Mutex::default() }
    }

    /// Sorts the first reports, the most likely ones first.
    pub(super) fn sort(&self, now: Time, words: Vec<Said>) -> Vec<Said> {
        self.reports.lock().sort(now, words, |(at, report)| (at, report))
    }

    /// All Sentinels, beginning with another one each round. A Sentinel with several addresses is listed with each.
    pub(super) fn from(&self, seeds: &[Endpoint], round: usize) -> Vec<Endpoint> {
        let mut all = seeds.to_vec();
        for one in self.named.lock().values().flat_map(|(_, named)| named) {
            let is_new = all.iter().all(|other| other.target.address != one.target.address);
            if is_new && all.len() < MOST {
                all.push(one.clone());
            }
        }
        let first = round % all.len().max(1);
        all.rotate_left(first);
        all
    }
}

impl Cluster {
    /// Asks a Sentinel for its report.
    pub(super) async fn said_by(&self, sentinels: &Sentinels, asked: &Endpoint) -> Result<Said, NoView> {
        let (service, at) = (&*sentinels.service, asked.target.to_string());
        let asking = question::ask(self.host.clone(), asked, &self.left_out, async |link| {
            Box::pin(read_from(link, &at, service, asked.limits.command)).await
        });
        let (report, others) = match Box::pin(asking).await {
            Ok(Ok(said)) => said,
            Ok(Err(services)) => return Err(NoView::Told(unknown(&at, service, &services))),
            Err(error) if is_of_the_password(&error) => {
                let text = format!("Sentinel {at} said \"{}\": give sentinel_password in the url", error.details());
                return Err(NoView::Told(Error::of(Failure::refused(text))));
            }
            Err(error) => return Err(error.into()),
        };
        let others = others.iter().map(|place| self.reach(place, asked, RequiredKind::Sentinel));
        let (heard, named) = (self.now(), others.chain([asked.clone()]).collect());
        let mut all = sentinels.named.lock();
        all.insert(at.clone(), (heard, named));
        // The Sentinels named by one that has not answered for this long are forgotten.
        all.retain(|_, (at, _)| heard.since(*at) < REMEMBERED);
        Ok((at.into(), report))
    }

    /// The view that follows from a Sentinel's report, if that is to be believed.
    pub(super) async fn judge(&self, sentinels: &Sentinels, (at, report): Said) -> Result<View, NoView> {
        let ours = {
            let topology = self.topology.read();
            topology.owner(0).and_then(|owner| Some((topology.place(owner)?.clone(), topology.epoch(owner))))
        };
        let known = ours.as_ref().map(|(place, epoch)| (place, *epoch));
        let now = known.map(|(place, _)| place);
        let mut verdict = sentinels.reports.lock().heard(self.now(), &at, report.clone(), known);
        // It remains to be seen whether they report it for long enough.
        if verdict == Verdict::Perhaps && self.is_needed() {
            self.doubt();
        }
        let Report { primary, epoch, replicas, .. } = report;
        if let Some(place) = now.filter(|place| verdict.is_open() && **place != primary) {
            if let Some(_asking) = self.ask_once("the primary whether it is one".into()) {
                verdict = match (verdict, self.is_primary(&self.endpoint(place)).await) {
                    (Verdict::Contested, Ok(false) | Err(_)) => Verdict::Taken,
                    (_, Ok(false)) => Verdict::BegunAnew,
                    (verdict, _) => verdict,
                };
            }
        }
        if !matches!(verdict, Verdict::Taken | Verdict::BegunAnew) {
            return Err(NoView::Told(Error::unavailable(format!(
                "Sentinel {at} names {primary} in epoch {epoch}, and is behind the times, or alone with that"
            ))));
        }
        if now != Some(&primary) {
            self.check_primary(&at, &sentinels.service, &primary).await?;
        }
        let name = |place: &Place| -> Box<str> { place.to_string().into() };
        let known = now.into_iter().chain([&primary]).map(name).collect();
        let (id, slots) = (name(&primary), vec![0..=SLOTS - 1]);
        let replicas =
            replicas.into_iter().map(|place| Replica { id: name(&place), place, is_failing: false }).collect();
        let primaries = vec![Primary { id, place: Some(primary), epoch, slots, replicas }];
        let begins_anew = ours.filter(|_| verdict == Verdict::BegunAnew);
        Ok(View { by: None, primaries, known, begins_anew })
    }

    /// Whether it reports to be a primary.
    async fn is_primary(&self, endpoint: &Endpoint) -> Result<bool, WireError> {
        // A caller has the time of one connection for this one and the Sentinel's.
        let role = tokio::time::timeout(endpoint.limits.connect / 2, self.question(endpoint, "ROLE", &[])).await;
        let role = role.map_err(|_| WireError::new(WireKind::Timeout, "it does not answer"))??;
        Ok(matches!(&role, Value::Array(parts) if parts.first().and_then(Value::as_str).as_deref() == Some("master")))
    }

    /// Fails unless the server reports that it is a primary.
    async fn check_primary(&self, sentinel: &str, service: &str, place: &Place) -> Result<(), NoView> {
        let endpoint = self.endpoint(place);
        let named = format!("Sentinel {sentinel} names {place} as the primary of {service:?}");
        Err(NoView::Told(match self.is_primary(&endpoint).await {
            Ok(true) => return Ok(()),
            Ok(false) => Error::unavailable(format!("{named}, which says that it is a replica")),
            Err(error) => match mistake_of(&endpoint, &error) {
                None | Some(Error::Unavailable(_)) => {
                    Error::unavailable(out_of_reach(&named, place, &endpoint.target, words(&error)))
                }
                // Every Sentinel names it: without this Sentinel's name, all errors are the same.
                Some(mistake) => of_primary(service, &mistake),
            },
        }))
    }

    /// Where this Sentinel says that the primary is; `None` if it does not say.
    pub(super) async fn primary_by(&self, asked: &Endpoint) -> Option<Place> {
        let asking = [ADDRESS, self.sentinels.as_ref()?.service.as_str()];
        read_address(&self.question(asked, "SENTINEL", &asking).await.ok()?)
    }

    /// Why a failover would not happen now, if this Sentinel reports that.
    pub(super) async fn no_quorum_by(&self, asked: &Endpoint) -> Option<String> {
        let asking = ["CKQUORUM", self.sentinels.as_ref()?.service.as_str()];
        let error = self.question(asked, "SENTINEL", &asking).await.err()?;
        error.details().starts_with("NOQUORUM").then(|| error.details().to_owned())
    }
}

async fn ask(link: &Link, what: &'static str, service: &str, limit: Duration) -> Result<Value, WireError> {
    link.command("SENTINEL", vec![what.into(), service.into()], limit).await
}

/// The service as the Sentinel at this address knows it; or the services that it watches instead.
///
/// The epoch is asked for before the address. So a newer address may come with an older epoch, and is taken a moment
/// later; never an older address with a newer epoch.
async fn read_from(
    link: &Link,
    at: &str,
    service: &str,
    limit: Duration,
) -> Result<Result<Answers, Vec<String>>, WireError> {
    let unreadable = || WireError::new(WireKind::Other, "what it says of its service cannot be read");
    let master = match ask(link, "MASTER", service, limit).await {
        Ok(master) => master,
        Err(error) if error.details().contains("No such master") => {
            let all = link.command("SENTINEL", vec!["MASTERS".into()], limit).await.unwrap_or(Value::Null);
            return Ok(Err(fields(&all, "name")));
        }
        Err(error) => return Err(error),
    };
    let (address, replicas, sentinels, name) = tokio::try_join!(
        ask(link, ADDRESS, service, limit),
        ask(link, "REPLICAS", service, limit),
        ask(link, "SENTINELS", service, limit),
        async { Ok(link.command("SENTINEL", vec!["MYID".into()], limit).await.ok()) },
    )?;
    let name = name.and_then(|name| name.as_string()).filter(|name| !name.is_empty());
    let (name, sentinels) = (name.as_deref().unwrap_or(at).into(), places(&sentinels));
    let epoch = field(&master, "config-epoch").and_then(|epoch| epoch.parse().ok()).ok_or_else(unreadable)?;
    let primary = read_address(&address).ok_or_else(unreadable)?;
    let report = Report { name, primary, epoch, replicas: places(&replicas), sentinels: sentinels.len() + 1 };
    Ok(Ok((report, sentinels)))
}

fn unknown(sentinel: &str, service: &str, services: &[String]) -> Error {
    let quoted: Vec<String> = services.iter().map(|service| format!("{service:?}")).collect();
    let watches = if quoted.is_empty() { "nothing".into() } else { quoted.join(", ") };
    Error::config(format!("Sentinel {sentinel} does not watch {service:?}; it watches {watches}"))
}

/// The error if the primary itself refuses us.
fn of_primary(service: &str, mistake: &Error) -> Error {
    let text = format!("the primary of {service:?}: {mistake}");
    if mistake.is_mistake() { Error::config(text) } else { Error::of(Failure::refused(text)) }
}

fn is_of_the_password(error: &WireError) -> bool {
    ["NOAUTH", "WRONGPASS"].iter().any(|word| error.details().starts_with(word))
}

/// A host and a port.
fn read_address(answer: &Value) -> Option<Place> {
    let Value::Array(parts) = answer else { return None };
    let [host, port] = &**parts else { return None };
    Place::read(&format!("{}:{}", host.as_str()?, port.as_str()?), "")
}

/// A field of an answer with names and values in turn.
fn field(answer: &Value, name: &str) -> Option<String> {
    let Value::Array(parts) = answer else { return None };
    let mut pairs = parts.chunks_exact(2).filter_map(<[Value]>::first_chunk::<2>);
    pairs.find_map(|[key, value]| (key.as_str()? == name).then(|| value.as_string())?)
}

fn fields(answer: &Value, name: &str) -> Vec<String> {
    let Value::Array(all) = answer else { return Vec::new() };
    all.iter().filter_map(|one| field(one, name)).collect()
}

/// The addresses of the servers in a list.
fn places(answer: &Value) -> Vec<Place> {
    let Value::Array(all) = answer else { return Vec::new() };
    let place = |one| Place::read(&format!("{}:{}", field(one, "ip")?, field(one, "port")?), "");
    all.iter().filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(parts: &[&str]) -> Value {
        Value::Array(parts.iter().map(|part| Value::from(*part)).collect())
    }

    #[test]
    fn what_a_sentinel_says_is_read() {
        let place = |port| Place { host: "::1".into(), port };
        assert_eq!(read_address(&array(&["::1", "7001"])), Some(place(7_001)));
        let all = Value::Array(vec![
            array(&["name", "a", "ip", "::1", "port", "7002", "flags", "slave"]),
            array(&["name", "b", "ip", "::1"]),
            Value::Null,
        ]);
        assert_eq!((places(&all), fields(&all, "name")), (vec![place(7_002)], vec!["a".into(), "b".into()]));
        for odd in [Value::Null, array(&[]), array(&["h"]), array(&["h", "0"]), array(&["h", "x"])] {
            assert_eq!((read_address(&odd), places(&odd), field(&odd, "ip")), (None, vec![], None), "{odd:?}");
        }
        assert_eq!(unknown("s:1", "lock", &[]).to_string().matches("nothing").count(), 1);
    }
}

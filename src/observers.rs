//! The observers of this process, one for each observed lock: a task on the keeper that looks, and reports to all its
//! subscribers.

use std::{pin::pin, sync::Arc, time::Duration};

use leasehold_protocol::{
    check::Check,
    failure::Failure,
    holder::{Holder, RELEASED},
    key::Key,
    message::{Request, Route, Sharers},
    observer::Observer,
    time::Time,
    troubles::causes_of_absence,
};
use tokio::sync::watch;

use crate::{
    engine::{Engine, LastReport},
    error::Error,
    foreign::{Event, tell},
    quorum::Seen,
    random,
    wait::InLine,
};

/// The most sharers that are read. If there are more, the released ones count as well.
const READ: usize = 100;

/// Observes this lock through its observer, or through a new one, which lives as long as it has a subscriber.
pub(crate) fn observe(engine: &Arc<Engine>, key: &Key) -> watch::Receiver<LastReport> {
    let (told, is_first) = engine.observers.join(key);
    if let Some(telling) = is_first {
        let observer = Observer::new(engine.options.command_timeout, random::jitter());
        let run = Run { engine: engine.clone(), key: key.clone(), telling, observer };
        engine.host.spawn_until_stopped(run.run());
    }
    told
}

/// The task of one observer.
struct Run {
    engine: Arc<Engine>,
    key: Key,
    telling: Arc<watch::Sender<LastReport>>,
    observer: Observer,
}

impl Run {
    /// Looks and reports, until the lock has no subscriber left, or the client is closed.
    async fn run(mut self) {
        let engine = self.engine.clone();
        let line = engine.observed.join(&self.key);
        let telling = self.telling.clone();
        loop {
            tokio::select! {
                biased;
                () = engine.closed.cancelled() => return,
                () = telling.closed() => {
                    if engine.observers.ends(&self.key, &telling) {
                        return;
                    }
                    // A look that was cut off may have been about to find something.
                    self.observer.notified();
                }
                () = self.step(&line) => {}
            }
        }
    }

    /// Waits for the next thing to do, and does it. If it is dropped half way, it is done once more.
    async fn step(&mut self, line: &InLine<'_>) {
        let now = self.engine.now();
        if self.observer.expires(now) {
            self.tell(true);
        }
        if self.observer.looks(now) {
            return self.look(line).await;
        }
        tokio::select! {
            biased;
            () = line.notified() => self.observer.notified(),
            () = self.engine.host.sleep_until(now, self.observer.due()) => {}
        }
    }

    async fn look(&mut self, line: &InLine<'_>) {
        let engine = self.engine.clone();
        self.observer.begins();
        let mut asked = pin!(ask(&engine, &self.key, line));
        let (sent, seen) = loop {
            // The last result may expire before the answer arrives.
            let (now, until) = (engine.now(), self.observer.known().until());
            tokio::select! {
                biased;
                asked = &mut asked => break asked,
                () = engine.host.sleep_until(now, until) => {
                    if self.observer.expires(engine.now()) {
                        self.tell(true);
                    }
                }
            }
        };
        let now = engine.now();
        self.tell_trouble(now, seen.as_ref().err());
        let is_news = match seen {
            Ok(Seen { holder, is_certain: true, is_tracked }) => {
                let holder = holder.map(|holder| engine.watchdog.recognize(&self.key, holder));
                self.observer.found(sent, now, is_tracked, holder)
            }
            _ => self.observer.found_nothing(now),
        };
        line.saw(Check::NotYet, now, self.observer.due());
        self.tell(is_news);
    }

    /// Reports why looks fail, or that they succeed again, once for all observers.
    fn tell_trouble(&self, now: Time, unseen: Option<&Error>) {
        let (troubles, lock) = (&self.engine.observers.troubles, || self.key.name().to_owned());
        match unseen {
            None => {
                if let Some(count) = troubles.end() {
                    tell(Event::ObserveAgain { lock: lock(), count });
                }
            }
            Some(error) => {
                let failure = error.to_string();
                if let Some(count) = troubles.meet_causes(now, causes_of_absence(&failure, error.votes())) {
                    tell(Event::ObserveFailed { lock: lock(), failure, count });
                }
            }
        }
    }

    /// Stores what is known. Only news, and the first look, wake the subscribers.
    fn tell(&self, is_news: bool) {
        self.telling.send_if_modified(|told| told.replace(self.observer.known().clone()).is_none() || is_news);
    }
}

/// However the task ends, its subscribers are notified.
impl Drop for Run {
    fn drop(&mut self) {
        self.engine.observers.forget(&self.key, &self.telling);
    }
}

/// Looks once. Returns when the look was sent, and the holder found, unless too few nodes have answered.
async fn ask(engine: &Engine, key: &Key, line: &InLine<'_>) -> (Time, Result<Seen, Error>) {
    let limit = engine.options.command_timeout;
    let connected = tokio::select! {
        biased;
        connected = engine.connect() => connected,
        () = engine.host.sleep(limit) => Err(Error::unavailable("there is no connection yet")),
    };
    // The slots are shared with the waiters: a silent shard has slots of its own.
    let slots = engine.check_slots(key);
    let _slot = engine.check_slot(&slots, engine.now() + limit, |_| limit).await;
    let (sent, route) = (engine.now(), engine.watchdog.route());
    line.checks_by(sent + limit);
    let seen = match connected {
        Ok(()) => engine.quorum.look(key, route, limit).await.map_err(Error::of),
        Err(error) => Err(error),
    };
    match seen {
        Ok(Seen { holder: Some(all), is_certain: true, is_tracked }) if all.is_of_all() => {
            let holder = sharers(engine, key, route, limit).await.unwrap_or(Some(all));
            (sent, Ok(Seen { holder, is_certain: true, is_tracked }))
        }
        seen => (sent, seen),
    }
}

/// The sharers of a lock as one holder, without those that are released and only keep their places. An error if they
/// may not be read.
async fn sharers(engine: &Engine, key: &Key, route: Route, limit: Duration) -> Result<Option<Holder>, Failure> {
    let request = Request::Sharers { key: key.clone(), most: READ };
    let read: Option<Sharers> = engine.quorum.sole()?.ask(route, request, limit).await?;
    Ok(read.map(|Sharers { holder, first }| {
        let count = holder.sharers().map_or(usize::MAX, |sharers| usize::try_from(sharers).unwrap_or(usize::MAX));
        if !holder.is_of_all() || first.len() < count {
            return holder;
        }
        let holds = first.iter().filter(|sharer| !sharer.label().is_some_and(|label| label.ends_with(RELEASED)));
        let last = holds.clone().next_back().and_then(Holder::remaining);
        holder.shared_by(u32::try_from(holds.count()).unwrap_or(u32::MAX)).lasting(last)
    }))
}

//! Carries the plan out, and records what it did.

use std::{
    fs,
    time::{Duration, Instant},
};

use support::{Action, Match};

use crate::{
    crew::{Scenery, Worker},
    history::{Cause, Found, Look, Loss, Name, Whom},
    plan::{Fault, First, Lane, LinkFault, ProcessFault, ServerFault, plan},
    record::{MILLI, Nanos, Process, now},
    scene::Scene,
    setup::{GONE_OVER, Kind, LONE, RESTART_DELAY, USER, nanos},
};

/// The allowance for a clock that lags behind what it has shown, and for its servers' rounding.
const MARGIN: Nanos = 100 * MILLI;

/// Carries out a lane until the time is up. Returns the process that is still at work then.
pub fn run(scene: &Scene, lane: Lane, until: Instant) -> Option<Worker> {
    match lane {
        Lane::Server(server) => {
            ServerLane { scene, server, until, behind_until: 0, emptied_at: 0, set_back: 0, seasoned_at: 0 }.run();
        }
        Lane::Process(slot) => return Some(process_lane(scene, slot, until)),
        Lane::Links(slot) => links_lane(scene, slot, until),
    }
    None
}

/// Rests; returns whether time is left after it.
pub fn rest(by: Duration, until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    std::thread::sleep(by.min(left));
    by < left
}

struct ServerLane<'a> {
    scene: &'a Scene,
    server: usize,
    until: Instant,
    /// Until when its clock shows times that it has shown before.
    behind_until: Nanos,
    /// When it lost all its data, and by how much its clock was set back since.
    emptied_at: Nanos,
    set_back: Nanos,
    /// When its uptime exceeds the restart delay, however its clock jumps.
    seasoned_at: Nanos,
}

impl ServerLane<'_> {
    fn run(mut self) {
        for step in plan(self.scene.stage, self.scene.seed, Lane::Server(self.server)) {
            if !rest(step.after, self.until) {
                return;
            }
            let Fault::Server(fault) = step.fault else { continue };
            // The wait is part of the rest before the fault.
            let in_time = match fault {
                ServerFault::RestartEmpty(_) | ServerFault::FlushAll | ServerFault::Move => {
                    self.await_moment(self.behind_until)
                }
                ServerFault::ClockBack(by) => self.await_moment(self.emptied_at + self.set_back + nanos(by) + MARGIN),
                ServerFault::ClockForward(_) if self.server != LONE => self.await_moment(self.seasoned_at),
                _ => true,
            };
            if !in_time {
                return;
            }
            // Other faults of the workers have to end first.
            let calm = (fault == ServerFault::Move).then(|| self.scene.calm());
            let from = now();
            self.act(fault, from);
            drop(calm);
            self.scene.mark(from, Whom::Server(self.server), step.fault.to_string());
        }
    }

    /// Waits for a moment, and returns whether it comes before the end. Fences grow across a loss of all data only if
    /// the clock is never behind a time that it has shown. A node's uptime is its wall clock, so a jump while it is
    /// young would have it vote too early. Both are assumptions of the promises.
    fn await_moment(&self, moment: Nanos) -> bool {
        rest(Duration::from_nanos(moment.saturating_sub(now())), self.until)
    }

    fn act(&mut self, fault: ServerFault, from: Nanos) {
        let server = self.scene.server(self.server);
        let clock = self.scene.servers.clock(self.server);
        match fault {
            ServerFault::Stop(by) => {
                server.stop();
                rest(by, self.until);
                server.cont();
            }
            ServerFault::Restart(down) | ServerFault::Outage(down) => {
                server.kill();
                rest(down, self.until);
                server.restart();
                self.is_young();
                self.know_workers();
            }
            ServerFault::RestartEmpty(down) => {
                server.kill();
                empty(self.scene, self.server);
                rest(down, self.until);
                self.lost(from, Cause::EmptyRestart);
                self.is_empty();
                seen_empty(self.scene, self.server, None, from);
                server.restart();
                self.is_young();
                self.know_workers();
            }
            ServerFault::ClockForward(by) => {
                clock.forward(by);
                self.behind_until = self.behind_until.saturating_sub(nanos(by));
                self.set_back = self.set_back.saturating_sub(nanos(by));
                self.lost(from, Cause::ClockJump);
            }
            ServerFault::ClockBack(by) => {
                clock.back(by);
                self.behind_until = self.behind_until.max(now()) + nanos(by) + MARGIN;
                self.set_back += nanos(by);
            }
            ServerFault::ScriptFlush => self.command(&["SCRIPT", "FLUSH"]),
            ServerFault::FlushAll => {
                self.command(&["FLUSHALL"]);
                self.lost(from, Cause::Deletion);
                self.is_empty();
                seen_empty(self.scene, self.server, None, from);
            }
            ServerFault::Delete(kind) => delete(self.scene, self.server, kind),
            ServerFault::DeletePlaces(kind) => {
                self.command(&["DEL", &format!("{{{}}}:lh:holders", kind.name)]);
                let name = Some(self.scene.number_of(kind));
                self.scene.loss(Loss { server: self.server, name, from, to: now(), cause: Cause::Places });
            }
            ServerFault::Overwrite(kind, by) => {
                self.command(&["SET", kind.name, "another's", "PX", &by.as_millis().to_string()]);
                let (name, to) = (self.scene.number_of(kind), now());
                let loss = Loss { server: self.server, name: Some(name), from, to, cause: Cause::Deletion };
                self.scene.loss(loss);
                let look = Look { name, from, to, found: [Found::Token(None, 0)].into() };
                self.scene.recorder().history.looks.push(look);
            }
            ServerFault::KillClients => {
                self.command(&["CLIENT", "KILL", "TYPE", "normal"]);
                self.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            }
            ServerFault::Rotate(first, by) => {
                let mut password = self.scene.password();
                password.turn();
                if first == First::Workers {
                    password.tell_workers();
                    rest(by, self.until);
                }
                password.tell_servers(self.scene.lone_servers());
                self.command(&["CLIENT", "KILL", "USER", USER]);
                if first == First::Server {
                    rest(by, self.until);
                    password.tell_workers();
                }
            }
            ServerFault::Move => {
                self.scene.move_lone();
                rest(GONE_OVER, self.until);
                let loss = Loss { server: LONE, name: None, from, to: from + nanos(GONE_OVER), cause: Cause::Move };
                self.scene.loss(loss);
                self.is_empty();
            }
        }
    }

    /// A restarted server does not know the workers any more.
    fn know_workers(&self) {
        if self.server == LONE {
            self.scene.password().tell_servers(self.scene.lone_servers());
        }
    }

    fn is_empty(&mut self) {
        (self.emptied_at, self.set_back) = (now(), 0);
    }

    fn is_young(&mut self) {
        self.seasoned_at = now() + nanos(RESTART_DELAY) + 1_500 * MILLI;
    }

    fn lost(&self, from: Nanos, cause: Cause) {
        self.scene.loss(Loss { server: self.server, name: None, from, to: now(), cause });
    }

    fn command(&self, args: &[&str]) {
        self.scene.server(self.server).wire().must(args);
    }
}

/// Makes a server that does not run forget everything.
pub fn empty(scene: &Scene, server: usize) {
    for data in ["appendonlydir", "appendonly.aof"] {
        let path = scene.server(server).directory().join(data);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.ok();
    }
}

/// Deletes the key of a lock on one server.
pub fn delete(scene: &Scene, server: usize, kind: &Kind) {
    let (from, name) = (now(), scene.number_of(kind));
    scene.server(server).wire().must(&["DEL", kind.name]);
    scene.loss(Loss { server, name: Some(name), from, to: now(), cause: Cause::Deletion });
    seen_empty(scene, server, Some(name), from);
}

/// Records that the server had no key of this name, or of any, at one moment since then. That is as good as a look,
/// except for one node of a quorum.
fn seen_empty(scene: &Scene, server: usize, name: Option<usize>, from: Nanos) {
    let to = now();
    let mut recorder = scene.recorder();
    let here = |(at, of): (usize, &Name)| {
        let is_it = of.servers == (server..server + 1) && name.is_none_or(|name| name == at);
        is_it.then(|| Look { name: at, from, to, found: [Found::Nothing].into() })
    };
    let looks: Vec<Look> = recorder.history.names.iter().enumerate().filter_map(here).collect();
    recorder.history.looks.extend(looks);
}

/// Restarts one worker again and again. The last process keeps running.
pub fn process_lane(scene: &impl Scenery, slot: u16, until: Instant) -> Worker {
    let mut worker = scene.worker(Process { slot, life: 0 });
    for step in plan(scene.stage, scene.seed, Lane::Process(slot)) {
        if !rest(step.after, until) {
            break;
        }
        assert!(!worker.is_dead(), "{} has died by itself", worker.process);
        let Fault::Process(fault) = step.fault else { continue };
        let _trouble = (!matches!(fault, ProcessFault::StallLog(_))).then(|| scene.troubled());
        let (from, process) = (now(), worker.process);
        match fault {
            ProcessFault::Stop(by) => {
                worker.stop();
                rest(by, until);
                worker.cont();
                scene.mark(from, Whom::Process(process), step.fault.to_string());
            }
            ProcessFault::StallLog(by) => {
                worker.stall_log(true);
                rest(by, until);
                worker.stall_log(false);
                scene.mark(from, Whom::Log(process), step.fault.to_string());
            }
            ProcessFault::Kill(down) => {
                worker.kill(scene);
                scene.mark(from, Whom::Process(process), step.fault.to_string());
                rest(down, until);
                worker = scene.worker(Process { life: process.life + 1, ..process });
            }
        }
    }
    worker
}

fn links_lane(scene: &Scene, slot: u16, until: Instant) {
    for step in plan(scene.stage, scene.seed, Lane::Links(slot)) {
        if !rest(step.after, until) {
            return;
        }
        let Fault::Link(server, fault) = step.fault else { continue };
        let _trouble = (server == LONE).then(|| scene.troubled());
        let (from, link) = (now(), &scene.links[usize::from(slot)][server]);
        // A silent link may carry no command.
        let one = |nth, action| {
            let rule = link.on(Match::any(), nth, action);
            rule.wait_hit(Duration::from_millis(500));
            rule.disarm();
            rule.hits() > 0
        };
        let mut happened = true;
        match fault {
            LinkFault::Cut => link.cut(),
            LinkFault::BlackHole(by) => {
                link.black_hole(true);
                rest(by, until);
                link.black_hole(false);
            }
            LinkFault::Delay(each_way, by) => {
                link.delay(each_way);
                rest(by, until);
                link.delay(Duration::ZERO);
            }
            LinkFault::Freeze(by) => {
                link.freeze(true);
                rest(by, until);
                link.freeze(false);
            }
            LinkFault::Refuse(by) => {
                link.refuse(true);
                link.cut();
                rest(by, until);
                link.refuse(false);
            }
            LinkFault::LoseReply(nth) => happened = one(nth, Action::SwallowReply),
            LinkFault::LoseCommand(nth) => happened = one(nth, Action::DropRequest),
            LinkFault::CutBefore(nth) => happened = one(nth, Action::CutBefore),
            LinkFault::CutAfter(nth) => happened = one(nth, Action::CutAfter),
        }
        if happened {
            scene.mark(from, Whom::Link { slot, server }, step.fault.to_string());
        }
    }
}

//! A fair queue when its waiters, its holder or its calls fail: rows F1, F35 and F36 of the fault table.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Owner};
use support::{
    Action, Child, HANGS, Lag, Match, Messages, Part, Proxy, Server, Value, Wire, eventually_async,
    scripts::{LEAVE, POLL, RELEASE},
    seen, two_workers, within,
};

use super::line::{HEARTBEAT, History, PROMPT, SOON, all_can_be_called, had, nothing_is_left, place, tokens, wait_key};
use crate::common::{Confirmed as _, LONG, told};

const GRANT: Duration = Duration::from_millis(200);

async fn program(url: impl Into<String>, ttl: Duration) -> Client {
    Client::builder().url(url).ttl(ttl).grant_timeout(GRANT).build().await.unwrap()
}

/// Records on the server when a waiter enters the lock, or leaves it.
const NOTE: &str = "local t = redis.call('TIME') \
    return redis.call('RPUSH', 'history', ARGV[1] .. ' ' .. string.format('%.0f', t[1] * 1000000 + t[2]))";

fn note(wire: &mut Wire, what: &str) {
    wire.must(&["EVAL", NOTE, "0", what]);
}

/// A process that takes a numbered place in the queue whenever it is told to, and records when that place gets its
/// turn.
fn waits_when_told(part: &Part) {
    two_workers().block_on(async {
        let lock = program(&*part.url, LONG).await.lock("job");
        loop {
            let word = part.hear();
            let waiter = place(&lock).await;
            part.say("waits");
            let mut wire = Wire::to_port(part.port());
            tokio::spawn(async move {
                let (lease, _) = waiter.await.unwrap();
                let lease = lease.unwrap();
                note(&mut wire, &format!("{word} in"));
                lease.check().unwrap();
                note(&mut wire, &format!("{word} out"));
                lease.release().await.unwrap().confirmed();
            });
        }
    });
}

/// Each record: the number, whether it entered or left, and when, in µs.
fn history(wire: &mut Wire) -> Vec<(usize, bool, i64)> {
    let lines = wire.must(&["LRANGE", "history", "0", "-1"]);
    let read = |line: &Value| {
        let text = line.text();
        let words: Vec<_> = text.split(' ').collect();
        (words[0].parse().unwrap(), words[1] == "in", words[2].parse().unwrap())
    };
    lines.array().iter().map(read).collect()
}

fn enter(child: &mut Child, n: usize) {
    child.tell(&n.to_string());
    child.says("waits");
}

#[test]
fn f35_sixty_four_waiters_of_eight_processes_acquire_in_order_also_when_three_are_killed() {
    const WAITERS: usize = 64;
    if let Some(part) = Part::mine() {
        return waits_when_told(&part);
    }
    let server = Server::start();
    let mut children: Vec<_> = (0..8)
        .map(|n| {
            Child::start(
                f35_sixty_four_waiters_of_eight_processes_acquire_in_order_also_when_three_are_killed,
                &n.to_string(),
                &server.url(),
            )
        })
        .collect();
    two_workers().block_on(async {
        let (mut wire, lag) = (server.wire(), Lag::start());
        let holder = program(server.url(), LONG).await;
        // First in turn; then in runs, so that the killed waiters are the head, some in the middle, and several
        // together.
        let [in_turn, in_runs]: [fn(usize) -> usize; 2] = [|n| n % 8, |n| n / 3 % 8];
        for (killed, process_of) in [(&[][..], in_turn), (&[0, 3, 4][..], in_runs)] {
            let lease = holder.lock("job").acquire().await.unwrap();
            for n in 0..WAITERS {
                enter(&mut children[process_of(n)], n);
            }
            all_can_be_called(&mut wire, "job", WAITERS).await;
            assert_eq!(holder.lock("job").waiters().await.unwrap().len(), WAITERS);
            let line = tokens(&mut wire, "job");
            for &process in killed {
                children[process].kill();
            }
            // After one round trip the server has noticed it.
            wire.must(&["PING"]);
            let expected: Vec<_> = (0..WAITERS).filter(|&n| !killed.contains(&process_of(n))).collect();
            wire.del("history");
            note(&mut wire, "1000 out");
            lease.release().await.unwrap().confirmed();
            eventually_async(SOON, "everybody has had it", || history(&mut wire).len() == 2 * expected.len() + 1).await;
            let notes = history(&mut wire);
            let order: Vec<_> = notes.iter().skip(1).step_by(2).map(|&(n, ..)| n).collect();
            assert_eq!(order, expected, "{line:?}");
            // The list is in the server's order: each waiter entered after the one before it had left.
            assert!(notes.chunks(2).all(|pair| !pair[0].1 && pair.get(1).is_none_or(|next| next.1)), "{notes:?}");
            let (mut usual, mut past_the_dead) = (Vec::new(), Vec::new());
            for pair in notes.chunks_exact(2) {
                let (before, next) = (pair[0].0.wrapping_add(1) % 1001, pair[1].0);
                (if before == next { &mut usual } else { &mut past_the_dead }).push(pair[1].2 - pair[0].2);
            }
            usual.sort_unstable();
            let median = usual[usual.len() / 2];
            let added: i64 = past_the_dead.iter().map(|gap| gap - median).sum();
            println!("{killed:?}: {median} µs each, {added} µs for {} times past the dead", past_the_dead.len());
            let added = Duration::from_micros(added.try_into().unwrap_or(0));
            seen::took("the line's delay by its dead", added, PROMPT, &lag);
            // A sum, each part of which may be as late as the control.
            let late = lag.worst() * u32::try_from(past_the_dead.len()).unwrap();
            assert!(added <= PROMPT + late, "{added:?}");
            wire.del("history");
            nothing_is_left(&mut wire).await;
        }
    });
}

#[test]
fn f35_the_head_killed_cancelled_or_stopped() {
    if let Some(part) = Part::mine() {
        return waits_when_told(&part);
    }
    let server = Server::start();
    let start = || Child::start(f35_the_head_killed_cancelled_or_stopped, "wait", &server.url());
    let (mut killed, mut stopped) = (start(), start());
    two_workers().block_on(async {
        let (mut wire, lag) = (server.wire(), Lag::start());
        let (holder, ours) = (program(server.url(), LONG).await, program(server.url(), LONG).await);
        let lock = ours.lock("job");
        for case in ["killed", "cancelled", "stopped"] {
            let lease = holder.lock("job").acquire().await.unwrap();
            let mut first = None;
            match case {
                "killed" => (0..3).for_each(|n| enter(&mut killed, n)),
                "cancelled" => first = Some(place(&lock).await),
                _ => (0..3).for_each(|n| enter(&mut stopped, n)),
            }
            let next = place(&lock).await;
            let count = tokens(&mut wire, "job").len();
            all_can_be_called(&mut wire, "job", count).await;
            match first {
                Some(first) => first.abort(),
                None if case == "killed" => killed.kill(),
                None => stopped.stop(),
            }
            wire.must(&["PING"]);
            let released = Instant::now();
            lease.release().await.unwrap().confirmed();
            let (lease, at) = had(next).await;
            let took = at.duration_since(released);
            println!("{case}: {took:?}");
            let limit = if case == "stopped" { GRANT } else { Duration::ZERO };
            assert!(took >= limit, "{case}: nobody was granted it before: {took:?}");
            seen::took(&format!("next one, the head {case}"), took, limit + PROMPT, &lag);
            assert!(took <= limit + PROMPT + lag.worst(), "{case}: {took:?}");
            if case == "stopped" {
                stopped.cont();
                eventually_async(SOON, "they have places again", || tokens(&mut wire, "job").len() == 3).await;
                lease.release().await.unwrap().confirmed();
                eventually_async(SOON, "they have it", || history(&mut wire).len() == 6).await;
                let order: Vec<_> = history(&mut wire).iter().step_by(2).map(|&(n, ..)| n).collect();
                assert_eq!(order, [0, 1, 2], "with their old places");
            } else {
                lease.release().await.unwrap().confirmed();
            }
            wire.del("history");
            nothing_is_left(&mut wire).await;
        }
    });
}

#[test]
fn f35_a_stopped_process_with_more_waiters_than_are_read_at_a_time() {
    if let Some(part) = Part::mine() {
        return waits_when_told(&part);
    }
    let server = Server::start();
    let mut stopped =
        Child::start(f35_a_stopped_process_with_more_waiters_than_are_read_at_a_time, "wait", &server.url());
    two_workers().block_on(async {
        let (mut wire, lag) = (server.wire(), Lag::start());
        let (holder, ours) = (program(server.url(), LONG).await, program(server.url(), LONG).await);
        for count in [33, 40] {
            let lease = holder.lock("job").acquire().await.unwrap();
            (0..count).for_each(|n| enter(&mut stopped, n));
            let next = place(&ours.lock("job")).await;
            all_can_be_called(&mut wire, "job", count + 1).await;
            stopped.stop();
            // After one round trip the server has read what the process sent before.
            wire.must(&["PING"]);
            let released = Instant::now();
            lease.release().await.unwrap().confirmed();
            let (lease, at) = had(next).await;
            let took = at.duration_since(released);
            println!("{count} stopped: {took:?}");
            assert!(took >= GRANT, "nobody was granted it before: {took:?}");
            seen::took(&format!("next one, {count} before it stopped"), took, GRANT + PROMPT, &lag);
            assert!(took <= GRANT + PROMPT + lag.worst(), "{count}: {took:?}");
            stopped.cont();
            eventually_async(SOON, "they have places again", || tokens(&mut wire, "job").len() == count).await;
            lease.release().await.unwrap().confirmed();
            eventually_async(SOON, "they have it", || history(&mut wire).len() == 2 * count).await;
            let order: Vec<_> = history(&mut wire).iter().step_by(2).map(|&(n, ..)| n).collect();
            assert!(order.is_sorted(), "with their old places: {order:?}");
            wire.del("history");
            nothing_is_left(&mut wire).await;
        }
    });
}

#[test]
fn f35_each_stopped_process_at_the_head_costs_one_grant() {
    if let Some(part) = Part::mine() {
        return waits_when_told(&part);
    }
    let server = Server::start();
    let start = || Child::start(f35_each_stopped_process_at_the_head_costs_one_grant, "wait", &server.url());
    let mut stopped: Vec<_> = (0..5).map(|_| start()).collect();
    two_workers().block_on(async {
        let (mut wire, lag) = (server.wire(), Lag::start());
        let (holder, ours) = (program(server.url(), LONG).await, program(server.url(), LONG).await);
        for grants in [2, 5] {
            let lease = holder.lock("job").acquire().await.unwrap();
            let stopped = &mut stopped[..grants];
            // The first process has two waiters ahead of the others, which makes the second one the next in line.
            enter(&mut stopped[0], 0);
            stopped.iter_mut().enumerate().for_each(|(n, child)| enter(child, n + 1));
            let next = place(&ours.lock("job")).await;
            all_can_be_called(&mut wire, "job", grants + 2).await;
            stopped.iter().for_each(Child::stop);
            wire.must(&["PING"]);
            let released = Instant::now();
            lease.release().await.unwrap().confirmed();
            let (lease, at) = had(next).await;
            let took = at.duration_since(released);
            println!("{grants} stopped: {took:?}");
            let steps = u32::try_from(grants).unwrap();
            let limit = GRANT * steps;
            assert!(took >= limit, "nobody was granted it before: {took:?}");
            seen::took(&format!("next one behind {grants} stopped processes"), took, limit + PROMPT, &lag);
            // Each grant may end late.
            assert!(took <= limit + PROMPT + lag.of(steps), "{grants}: {took:?}");
            stopped.iter().for_each(Child::cont);
            eventually_async(SOON, "they have places again", || tokens(&mut wire, "job").len() == grants + 1).await;
            lease.release().await.unwrap().confirmed();
            eventually_async(SOON, "they have it", || history(&mut wire).len() == 2 * (grants + 1)).await;
            wire.del("history");
            nothing_is_left(&mut wire).await;
        }
    });
}

/// The waiters behind the stopped processes are notified too late in the line, or too early in time.
#[test]
fn f35_stopped_processes_cost_a_grant_each_wherever_they_are_in_a_queue_that_moves() {
    if let Some(part) = Part::mine() {
        return waits_when_told(&part);
    }
    let server = Server::start();
    let start = || {
        Child::start(
            f35_stopped_processes_cost_a_grant_each_wherever_they_are_in_a_queue_that_moves,
            "wait",
            &server.url(),
        )
    };
    let mut stopped = [start(), start()];
    two_workers().block_on(async {
        let (mut wire, lag) = (server.wire(), Lag::start());
        let holder = program(server.url(), LONG).await;
        let mut others = Vec::new();
        for _ in 0..14 {
            others.push(program(server.url(), LONG).await);
        }
        // How many are ahead of them, and whether they enter only when the first of these has the lock.
        for (quick, are_late) in [(1, false), (2, true), (7, false), (8, false), (13, false)] {
            let lease = holder.lock("job").acquire().await.unwrap();
            let mut ahead = Vec::new();
            for other in &others[..quick] {
                ahead.push(place(&other.lock("job")).await);
            }
            let mut ahead = ahead.into_iter();
            let mut lease = lease;
            if are_late {
                lease.release().await.unwrap().confirmed();
                lease = had(ahead.next().unwrap()).await.0;
            }
            stopped.iter_mut().enumerate().for_each(|(n, child)| enter(child, n));
            let next = place(&others[13].lock("job")).await;
            all_can_be_called(&mut wire, "job", ahead.len() + 3).await;
            stopped.iter().for_each(Child::stop);
            wire.must(&["PING"]);
            let mut released = Instant::now();
            lease.release().await.unwrap().confirmed();
            for one in ahead {
                let (lease, _) = had(one).await;
                released = Instant::now();
                lease.release().await.unwrap().confirmed();
            }
            let (lease, at) = had(next).await;
            let took = at.duration_since(released);
            println!("behind {quick} quick ones, late: {are_late}: {took:?}");
            assert!(took >= GRANT * 2, "nobody was granted it before: {took:?}");
            seen::took(&format!("next one behind two stopped ones and {quick} others"), took, GRANT * 2 + PROMPT, &lag);
            assert!(took <= GRANT * 2 + PROMPT + lag.worst(), "{quick}, {are_late}: {took:?}");
            stopped.iter().for_each(Child::cont);
            eventually_async(SOON, "they have places again", || tokens(&mut wire, "job").len() == 2).await;
            lease.release().await.unwrap().confirmed();
            eventually_async(SOON, "they have it", || history(&mut wire).len() == 4).await;
            wire.del("history");
            nothing_is_left(&mut wire).await;
        }
    });
}

#[test]
fn f35_an_unreachable_process_costs_one_grant_however_many_of_its_waiters_die() {
    // Waiters further back check for a lapsed grant later, by this much each.
    const STAGGER: Duration = Duration::from_millis(40);
    if let Some(part) = Part::mine() {
        return waits_when_told(&part);
    }
    let server = Server::start();
    let mut wire = server.wire();
    let url = server.url_without_push(server.port());
    two_workers().block_on(async {
        let lag = Lag::start();
        let (holder, ours) = (program(&*url, LONG).await, program(&*url, LONG).await);
        for (count, is_killed) in [(1, true), (5, true), (10, true), (10, false)] {
            let mut child =
                Child::start(f35_an_unreachable_process_costs_one_grant_however_many_of_its_waiters_die, "wait", &url);
            let lease = holder.lock("job").acquire().await.unwrap();
            (0..count).for_each(|n| enter(&mut child, n));
            let next = place(&ours.lock("job")).await;
            let after = place(&ours.lock("job")).await;
            if is_killed {
                child.kill();
            } else {
                child.stop();
            }
            wire.must(&["PING"]);
            let released = Instant::now();
            lease.release().await.unwrap().confirmed();
            let (lease, at) = had(next).await;
            let took = at.duration_since(released);
            println!("{count}, killed {is_killed}: {took:?}");
            assert!(took >= GRANT, "nobody was granted it before: {took:?}");
            let limit = GRANT + STAGGER + PROMPT;
            seen::took(&format!("next one, {count} before it dead that could not be called"), took, limit, &lag);
            assert!(took <= limit + lag.worst(), "{count}: {took:?}");
            if !is_killed {
                child.cont();
                eventually_async(SOON, "they have places again", || tokens(&mut wire, "job").len() == count + 1).await;
            }
            lease.release().await.unwrap().confirmed();
            if !is_killed {
                eventually_async(SOON, "they have it", || history(&mut wire).len() == 2 * count).await;
                wire.del("history");
            }
            had(after).await.0.release().await.unwrap().confirmed();
            drop(child);
            // A killed process's mark stays for as long as the queue would.
            wire.del(&wait_key("job"));
            nothing_is_left(&mut wire).await;
        }
    });
}

#[test]
fn f1_holder_killed_with_a_fair_queue_behind_it() {
    const TTL: Duration = Duration::from_millis(400);
    if let Some(part) = Part::mine() {
        return two_workers().block_on(async {
            let _lease = program(&*part.url, TTL).await.lock("job").fair(true).acquire().await.unwrap();
            part.say("holds");
            part.hear();
        });
    }
    let server = Server::start();
    let mut child = Child::start(f1_holder_killed_with_a_fair_queue_behind_it, "hold", &server.url());
    two_workers().block_on(async {
        let (mut wire, lag) = (server.wire(), Lag::start());
        let all = [program(server.url(), LONG).await, program(server.url(), LONG).await];
        child.says("holds");
        let mut waiters = Vec::new();
        for n in 0..4 {
            waiters.push(place(&all[n % 2].lock("job")).await);
        }
        all_can_be_called(&mut wire, "job", 4).await;
        let killed = Instant::now();
        child.kill();
        let mut before = killed;
        for (n, waiter) in waiters.into_iter().enumerate() {
            let (lease, at) = had(waiter).await;
            let took = at.saturating_duration_since(before);
            println!("{n}: {took:?}");
            let limit = if n == 0 { TTL } else { Duration::ZERO } + PROMPT + lag.worst();
            if n == 0 {
                seen::took("next of a queue after the kill", took, TTL + PROMPT, &lag);
            }
            assert!(took <= limit, "{n}: {took:?}");
            before = Instant::now();
            lease.release().await.unwrap().confirmed();
        }
        nothing_is_left(&mut wire).await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f36_a_notification_lost_late_or_twice_costs_others_a_grant_and_its_waiter_a_heartbeat() {
    const LATE: Duration = Duration::from_millis(700);
    let server = Server::start();
    let holder = program(server.url(), LONG).await;
    // Notifications are on by then. When they are switched on, leases are renewed, and waiters with tracked locks poll.
    told(&holder).await;
    let mut cases = Vec::new();
    for fate in [Messages::Lose, Messages::Late(LATE), Messages::Twice] {
        let (lease, others) = (holder.lock(format!("{fate:?}")).acquire().await.unwrap(), holder.clone());
        let (mut wire, proxy) = (server.wire(), Proxy::to(&server));
        cases.push(tokio::spawn(async move {
            let (lag, name) = (Lag::start(), format!("{fate:?}"));
            let theirs = program(proxy.url(), LONG).await;
            told(&theirs).await;
            // The first waiter polls once more, to have the lock tracked. That poll must not meet the grant.
            let polled = proxy.on(Match::script(POLL), 2, Action::HoldReply);
            let unlucky = place(&theirs.lock(&name)).await;
            within(SOON, "it has the lock tracked", polled.hit()).await;
            polled.release();
            let next = place(&others.lock(&name)).await;
            all_can_be_called(&mut wire, &name, 2).await;
            proxy.messages(fate);
            let released = Instant::now();
            lease.release().await.unwrap().confirmed();
            let (grant, call) = match fate {
                Messages::Lose => (GRANT, HEARTBEAT),
                Messages::Late(by) => (GRANT, by),
                _ => (Duration::ZERO, Duration::ZERO),
            };
            if fate == Messages::Twice {
                let (lease, at) = had(unlucky).await;
                assert!(at.duration_since(released) <= PROMPT + lag.of(2));
                let released = Instant::now();
                lease.release().await.unwrap().confirmed();
                let (lease, at) = had(next).await;
                assert!(at.duration_since(released) <= PROMPT + lag.of(2));
                lease.release().await.unwrap().confirmed();
                return;
            }
            let (lease, at) = had(next).await;
            let took = at.duration_since(released);
            assert!(took <= grant + PROMPT + lag.worst(), "{name}: the next one after {took:?}");
            lease.release().await.unwrap().confirmed();
            let (lease, at) = had(unlucky).await;
            let its = at.duration_since(released);
            println!("{name}: the next one after {took:?}, itself after {its:?}");
            let what = if fate == Messages::Lose { "call lost" } else { "call late" };
            seen::took(&format!("next of a queue, {what}"), took, grant + PROMPT, &lag);
            seen::took(&format!("the called one itself, {what}"), its, call + PROMPT, &lag);
            assert!(its <= call + PROMPT + lag.worst(), "{name}: itself after {its:?}");
            lease.release().await.unwrap().confirmed();
        }));
    }
    for case in cases {
        case.await.unwrap();
    }
    nothing_is_left(&mut server.wire()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f36_a_notification_that_comes_after_the_grant_does_not_pass_the_lock_on() {
    let server = Server::start();
    let (mut wire, proxy) = (server.wire(), Proxy::to(&server));
    let (holder, ours) = (program(server.url(), LONG).await, program(proxy.url(), LONG).await);
    let lease = holder.lock("job").acquire().await.unwrap();
    let waiter = place(&ours.lock("job")).await;
    let next = place(&holder.lock("job")).await;
    all_can_be_called(&mut wire, "job", 2).await;
    let token = tokens(&mut wire, "job").remove(0);
    let entry = wire.must(&["HGET", &wait_key("job"), &token]).text();
    let channel = entry.rsplit('|').next().unwrap();
    lease.release().await.unwrap().confirmed();
    let (lease, _) = had(waiter).await;
    let unknown = "lh1:0d9a60f5-51a8-4bd6-a02c-0123456789ab@who has gone".to_owned();
    for token in [&token, &unknown] {
        wire.must(&["PUBLISH", channel, &format!("granted {} {token}job", token.len())]);
    }
    // The first message has been received by then, and answered before.
    let leaves = |token: &str| proxy.count(Match::script(LEAVE).and(Match::containing(token)));
    eventually_async(SOON, "who has gone leaves", || leaves(&unknown) > 0).await;
    assert_eq!(leaves(&token), 0, "it holds the lock");
    assert_eq!(wire.token("job").unwrap(), token);
    assert!(!next.is_finished(), "two holders");
    lease.check().unwrap();

    // Nor during the release, which would then find the lock taken.
    let (release, before) = (proxy.on(Match::script(RELEASE), 1, Action::Hold), leaves(&unknown));
    let releasing = tokio::spawn(lease.release());
    within(SOON, "the release is under way", release.hit()).await;
    assert_eq!(wire.token("job").unwrap(), token);
    for token in [&token, &unknown] {
        wire.must(&["PUBLISH", channel, &format!("granted {} {token}job", token.len())]);
    }
    eventually_async(SOON, "who has gone leaves", || leaves(&unknown) > before).await;
    assert_eq!(leaves(&token), 0, "it is being released");
    release.release();
    within(SOON, "the release", releasing).await.unwrap().unwrap().confirmed();
    had(next).await.0.release().await.unwrap().confirmed();
    nothing_is_left(&mut wire).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f36_there_are_never_two_fair_holders() {
    const TURNS: usize = 50;
    let server = Server::start();
    let (mut proxies, mut tasks, history) = (Vec::new(), Vec::new(), History::new());
    let until = Instant::now() + Duration::from_secs(3);
    for fate in [Messages::Pass, Messages::Lose, Messages::Twice, Messages::Late(Duration::from_millis(70))] {
        let proxy = Proxy::to(&server);
        proxy.messages(fate);
        // The grant is shorter than the delay. The lease is longer, so that a busy machine does not end it.
        let builder = Client::builder().url(proxy.url()).ttl(LONG);
        let leases = builder.grant_timeout(Duration::from_millis(50)).build().await.unwrap();
        proxies.push(proxy);
        for _ in 0..3 {
            let lock = leases.lock("job").fair(true).owner(Owner::anonymous());
            let history = history.clone();
            tasks.push(tokio::spawn(async move {
                while Instant::now() < until || history.count() < TURNS {
                    let lease = lock.acquire().await.unwrap();
                    history.pass(lease, 0).await;
                }
            }));
        }
    }
    for task in tasks {
        within(SOON, "everybody's end", task).await.unwrap();
    }
    println!("{} acquisitions", history.count());
    seen::at_least("fair turns, one at a time", history.count(), TURNS);
    nothing_is_left(&mut server.wire()).await;
}

/// Other waiters keep the whole queue alive, so a place cannot be left to expire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_gives_up_during_an_outage_leaves_the_queue_after_it() {
    const SHORT: Duration = Duration::from_millis(500);
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (holder, far) = (program(server.url(), SHORT).await, program(proxy.url(), SHORT).await);
    let mut wire = server.wire();
    // It waits; or it has just been granted the lock, and its silent process is marked.
    for is_granted in [false, true] {
        let lease = holder.lock("job").fair(true).acquire().await.unwrap();
        let waiting = tokio::spawn(far.lock("job").fair(true).acquire());
        all_can_be_called(&mut wire, "job", 1).await;
        proxy.black_hole(true);
        waiting.abort();
        let lease = if is_granted {
            lease.release().await.unwrap().confirmed();
            assert_eq!(tokens(&mut wire, "job").len(), 0);
            proxy.cut();
            None
        } else {
            Some(lease)
        };
        // Longer than anything that it may have acquired could live.
        tokio::time::sleep(3 * SHORT).await;
        assert!(wire.exists(&wait_key("job")));
        proxy.black_hole(false);
        eventually_async(SOON, "it has left", || !wire.exists(&wait_key("job"))).await;
        if let Some(lease) = lease {
            lease.release().await.unwrap().confirmed();
        }
    }
}

/// The first poll of a program waits to learn whether the server can notify it, but no longer than its caller waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_poll_that_is_answered_late_ends_with_its_caller() {
    const LIMIT: Duration = Duration::from_millis(800);
    const LATE: Duration = Duration::from_millis(750);
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holder = program(server.url(), LONG).await;
    let _held = holder.lock("job").acquire().await.unwrap();
    let _undecided = proxy.on(Match::command("SUBSCRIBE"), 1, Action::Hold);
    let waiter = Client::builder().url(proxy.url()).command_timeout(HANGS / 2).build().await.unwrap();
    let answer = proxy.on(Match::script(POLL), 1, Action::HoldReply);
    let (lag, began) = (Lag::start(), Instant::now());
    let waiting = tokio::spawn(waiter.lock("job").fair(true).acquire_within(LIMIT));
    within(HANGS, "its first poll", answer.hit()).await;
    tokio::time::sleep_until((began + LATE).into()).await;
    answer.release();
    let outcome = within(HANGS, "its end", waiting).await.unwrap();
    let took = began.elapsed();
    assert!(matches!(&outcome, Err(Error::TimedOut { .. } | Error::Unavailable(_))), "{outcome:?}");
    assert!(took <= LIMIT + Duration::from_millis(50) + lag.of(2), "{took:?}, the machine lagged {:?}", lag.worst());
}

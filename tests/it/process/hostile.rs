//! Hostile answers: a proxy changes, cuts, repeats and invents bytes of a real server's answers, at random.
//!
//! Nothing panics, every call ends in time, no lease is valid for longer than its TTL, memory stays bounded, and the
//! same [`Client`] works again once the answers are right. Not tested is what SECURITY.md lists as open: arrays nested
//! thousands deep, and one long string.
//!
//! Some seconds with every run of the tests; a failure names its seed. For an hour, from another seed:
//!
//! ```text
//! LEASEHOLD_HOSTILE=3600 LEASEHOLD_SEED=7 cargo test --test it process::hostile
//! ```

use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    ops::Range,
    panic,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, Lease, doctor::survey};
use support::{HANGS, Lag, SIGNAL, Server, Wire, alone, eventually_async, two_workers, within};
use tokio::task::JoinSet;

/// How long the answers of one seed stay hostile.
const ROUND: Duration = Duration::from_secs(1);
/// How many seeds the gate tries.
const ROUNDS: u32 = 4;
/// The number of programs, each with `TASKS` tasks. A spoilt answer delays only the tasks of its own program.
const PROGRAMS: usize = 8;
const TASKS: usize = 4;
const NAMES: usize = 12;
const TTL: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_millis(300);
/// A process this late with an answer asks once more, because the answer may be in its socket.
const STOOD_STILL: Duration = Duration::from_millis(250);
/// How far the process may grow between the first seed and the last one, in KiB.
const MOST_GROWTH: u64 = 64 << 10;

/// Answers that no reader expects there.
const FRAGMENTS: [&[u8]; 44] = [
    b"+OK\r\n",
    b"+QUEUED\r\n",
    b"+\r\n",
    b"-\r\n",
    b"-ERR \x00\x1b[31m\xff\r\n",
    b"-ERR unknown command 'hello'\r\n",
    b"-NOSCRIPT No matching script\r\n",
    b"-LOADING the dataset\r\n",
    b"-READONLY a replica\r\n",
    b"-NOPERM this user has no permissions to run the 'get' command\r\n",
    b"-NOAUTH Authentication required.\r\n",
    b"-WRONGPASS no\r\n",
    b"-MOVED 1 127.0.0.1:1\r\n",
    b"-MOVED x\r\n",
    b"-ASK 1 :0\r\n",
    b"-CLUSTERDOWN no\r\n",
    b":0\r\n",
    b":1\r\n",
    b":-1\r\n",
    b":9223372036854775807\r\n",
    b":99999999999999999999\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$-2\r\n",
    b"$2147483647\r\n",
    b"$?\r\n;3\r\nabc\r\n;0\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2147483647\r\n",
    b"*?\r\n:1\r\n.\r\n",
    b"*3\r\n:1\r\n:7\r\n$40\r\nlh1:0d9a60f5-51a8-4bd6-a02c-0123456789ab\r\n",
    b"*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*1\r\n$5\r\njob:0\r\n",
    b"*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*-1\r\n",
    b"%2147483647\r\n",
    b"%1\r\n+a\r\n*1\r\n%1\r\n_\r\n_\r\n",
    b"~2\r\n:1\r\n:1\r\n",
    b"|1\r\n+a\r\n+b\r\n",
    b">2\r\n+invalidate\r\n*-1\r\n",
    b">0\r\n",
    b"(123456789012345678901234567890\r\n",
    b",nan\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"!3\r\nERR\r\n",
    b"_\r\n",
];

/// `SplitMix64` (Steele, Lea and Flood, 2014): a seed gives the same numbers every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap()
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn range(&mut self, len: usize) -> Range<usize> {
        let (one, other) = (self.below(len + 1), self.below(len + 1));
        one.min(other)..one.max(other)
    }

    fn pick<'a>(&mut self, of: &[&'a [u8]]) -> &'a [u8] {
        of[self.below(of.len())]
    }
}

/// The proxy's next step on a connection, after some bytes of an answer.
#[derive(PartialEq)]
enum Then {
    GoOn,
    Close,
    /// Nothing more is answered on this connection.
    FallSilent,
}

/// Changes one thing about an answer.
fn spoil(answer: &mut Vec<u8>, random: &mut Random) -> Then {
    let at = random.below(answer.len());
    let range = random.range(answer.len());
    let fragment = random.pick(&FRAGMENTS);
    match random.below(12) {
        0 => answer[at] = random.next().to_le_bytes()[0],
        1 => answer[at] = random.pick(&[b"+", b"-", b":", b"$", b"*", b"%", b"~", b">", b"|", b"(", b",", b"#"])[0],
        2 => drop(answer.drain(range)),
        3 => {
            let copy = answer[range.clone()].to_vec();
            answer.splice(range.start..range.start, copy);
        }
        4 => drop(answer.splice(at..at, fragment.iter().copied())),
        // Between two lines, where a decoder expects a type.
        5 => {
            let line =
                answer.iter().skip(at).position(|byte| *byte == b'\n').map_or(answer.len(), |more| at + more + 1);
            answer.splice(line..line, fragment.iter().copied());
        }
        6 => *answer = fragment.to_vec(),
        7 => answer.extend(fragment),
        8 => {
            let digits = |byte: &u8| byte.is_ascii_digit();
            let number = random.pick(&[b"-1", b"0", b"64", b"4294967296", b"9223372036854775807", b"", b"1e9", b"-0"]);
            if let Some(begin) = answer.iter().skip(at).position(digits).map(|more| at + more) {
                let end =
                    answer.iter().skip(begin).position(|byte| !digits(byte)).map_or(answer.len(), |more| begin + more);
                answer.splice(begin..end, number.iter().copied());
            }
        }
        9 => {
            let nested = b"*1\r\n".repeat(random.below(100));
            answer.splice(at..at, nested);
        }
        10 => {
            answer.truncate(at);
            return Then::Close;
        }
        _ => {
            answer.truncate(at);
            return Then::FallSilent;
        }
    }
    Then::GoOn
}

/// The proxy between the library and the server.
struct Spoiler {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: u16,
    seed: AtomicU64,
    is_hostile: AtomicBool,
    is_over: AtomicBool,
    /// How many answers were spoilt.
    spoilt: AtomicU64,
}

impl Spoiler {
    fn to(server: &Server) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            upstream: server.port(),
            seed: AtomicU64::new(0),
            is_hostile: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            spoilt: AtomicU64::new(0),
        });
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if of_thread.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&of_thread);
                thread::spawn(move || serve(&client?, &shared));
            }
        });
        Self { port, shared }
    }

    fn be_hostile(&self, seed: u64) {
        self.shared.seed.store(seed, Ordering::Relaxed);
        self.shared.is_hostile.store(true, Ordering::Relaxed);
    }

    fn be_honest(&self) {
        self.shared.is_hostile.store(false, Ordering::Relaxed);
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Spoiler {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let _wakes_the_listener = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve(client: &TcpStream, shared: &Shared) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", shared.upstream))?;
    let (mut requests, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ends_with_either = io::copy(&mut requests, &mut to_server);
        let _is_closed = to_server.shutdown(Shutdown::Both);
    });
    let done = answer(client, &server, shared);
    let _is_closed = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    done
}

fn answer(mut client: &TcpStream, mut server: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut random = Random(shared.seed.fetch_add(1, Ordering::Relaxed));
    let mut buffer = [0; 16 << 10];
    let (mut is_silent, mut was_spoilt) = (false, false);
    loop {
        let read = server.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        let is_hostile = shared.is_hostile.load(Ordering::Relaxed);
        // An invented answer may remain among the others for good.
        if was_spoilt && !is_hostile {
            return Ok(());
        }
        let mut answer = buffer[..read].to_vec();
        let mut then = Then::GoOn;
        if is_hostile && random.one_in(6) {
            was_spoilt = true;
            shared.spoilt.fetch_add(1, Ordering::Relaxed);
            then = spoil(&mut answer, &mut random);
        }
        if !is_silent {
            client.write_all(&answer)?;
        }
        is_silent |= then == Then::FallSilent;
        if then == Then::Close {
            return Ok(());
        }
    }
}

/// The messages of all panics of this process, on any thread.
fn panics() -> Arc<Mutex<Vec<String>>> {
    let panics = Arc::new(Mutex::new(Vec::new()));
    let (of_hook, usual) = (Arc::clone(&panics), panic::take_hook());
    panic::set_hook(Box::new(move |info| {
        of_hook.lock().unwrap().push(info.to_string());
        usual(info);
    }));
    panics
}

/// The memory of this process, in KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Holds a lease as a job does, and checks its promises, whatever the answers.
async fn hold(lease: Lease, random: &mut Random, lag: &Lag) {
    assert!(lease.remaining() <= TTL, "{:?} of {TTL:?}", lease.remaining());
    let longest = if random.one_in(5) { 1_500 } else { 20 };
    let span = Duration::from_millis(random.next() % longest);
    let until = Instant::now() + lease.remaining();
    let lost = tokio::time::timeout(span, lease.lost()).await;
    match lease.check() {
        Ok(()) => assert!(lost.is_err(), "{lost:?}"),
        // It may have ended after that wait.
        Err(error) => drop(within(SIGNAL + lag.worst(), &format!("the signal of {error}"), lease.lost()).await),
    }
    // A renewal waits for its answer no longer than the lease is certain to last.
    if lost.is_err() && random.one_in(3) {
        let left = lease.remaining();
        let _renewed = within(left + SIGNAL + lag.worst(), "a renewal", lease.renew()).await;
    }
    assert!(lease.remaining() <= TTL, "{:?} of {TTL:?}", lease.remaining());
    if Instant::now() < until || random.one_in(2) {
        let _released = within(HANGS, "a release", lease.release()).await;
    }
}

async fn use_locks(leases: Client, mut random: Random, until: Instant, lag: Arc<Lag>) {
    while Instant::now() < until {
        let name = format!("job:{}", random.below(NAMES));
        let lock = leases.lock(&name).fair(random.one_in(3));
        match random.below(12) {
            0 => drop(within(HANGS, "a holder", lock.holder()).await),
            1 => drop(within(HANGS, "waiters", lock.waiters()).await),
            2 => drop(within(HANGS, "a list", leases.list("job:*")).await),
            3 => drop(within(HANGS, "a survey", survey(&leases)).await),
            4 => drop(within(HANGS, "the health", leases.health()).await),
            5 => drop(within(HANGS, "a forced release", lock.force_release()).await),
            6 => drop(within(HANGS, "all holders", lock.holders()).await),
            7 | 8 => {
                if let Ok(Some(lease)) = within(HANGS, "a try", lock.try_acquire()).await {
                    hold(lease, &mut random, &lag).await;
                }
            }
            _ => {
                let begun = Instant::now();
                let acquired = within(HANGS, "an acquire", lock.acquire_within(LIMIT)).await;
                let (took, late) = (begun.elapsed(), lag.worst());
                // A process that stood still asks once more, and may stand still again. Two timers in a row end a wait,
                // and each may be late.
                let limit = if late < STOOD_STILL { LIMIT } else { 2 * LIMIT + late };
                assert!(took <= limit + SIGNAL + lag.of(2), "{took:?}, the machine lagged {late:?}: {acquired:?}");
                if let Ok(lease) = acquired {
                    hold(lease, &mut random, &lag).await;
                }
            }
        }
    }
}

fn program(spoiler: &Spoiler) -> Client {
    let builder = Client::builder().url(spoiler.url()).ttl(TTL).connect_timeout(Duration::from_secs(1));
    builder.command_timeout(LIMIT).build_lazy().unwrap()
}

/// Acquires a lock, although the last hostile answers may still arrive.
async fn acquired_at_last(leases: &Client) -> Lease {
    let begun = Instant::now();
    loop {
        match leases.lock("afterwards").acquire_within(HANGS).await {
            Ok(lease) => return lease,
            Err(error) => assert!(begun.elapsed() < HANGS, "{error}"),
        }
    }
}

/// One seed: hostile for a second, then honest, and everything works.
async fn round(seed: u64, spoiler: &Spoiler, wire: &mut Wire, lag: &Arc<Lag>) {
    let programs: Vec<_> = (0..PROGRAMS).map(|_| program(spoiler)).collect();
    let (mut random, until) = (Random(seed), Instant::now() + ROUND);
    spoiler.be_hostile(seed);
    let mut tasks = JoinSet::new();
    for leases in programs.iter().flat_map(|leases| [leases; TASKS]) {
        tasks.spawn(use_locks(leases.clone(), Random(random.next()), until, Arc::clone(lag)));
    }
    while let Some(done) = within(HANGS, "all tasks", tasks.join_next()).await {
        done.unwrap();
    }
    spoiler.be_honest();
    for leases in programs {
        let lease = acquired_at_last(&leases).await;
        assert!(wire.exists("afterwards"), "it was acquired where the server is");
        within(HANGS, "a release", lease.release()).await.unwrap();
        within(HANGS, "the end", leases.close()).await;
    }
    // No request waits for these keys. Their TTL ends them.
    let mut are_gone = || (0..NAMES).all(|name| !wire.exists(&format!("job:{name}")));
    eventually_async(HANGS, "no key is left", &mut are_gone).await;
}

#[test]
fn answers_at_random_neither_break_nor_outlive_a_promise() {
    alone(|| {
        two_workers().block_on(async {
            let number = |name| env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
            let (first, long) =
                (number("LEASEHOLD_SEED").unwrap_or(1), number("LEASEHOLD_HOSTILE").map(Duration::from_secs));
            let (panics, server, lag) = (panics(), Server::start(), Arc::new(Lag::start()));
            let (spoiler, mut wire, begun) = (Spoiler::to(&server), server.wire(), Instant::now());
            let (mut rounds, mut at_first) = (0, 0);
            while long.map_or(rounds < ROUNDS, |long| begun.elapsed() < long) {
                // Far from the seeds of another round's connections.
                let seed = (first + u64::from(rounds)) << 20;
                if long.is_some() || rounds == 0 {
                    println!(
                        "seed {}, {} KiB, {} spoilt",
                        seed >> 20,
                        resident(),
                        spoiler.shared.spoilt.load(Ordering::Relaxed)
                    );
                }
                round(seed, &spoiler, &mut wire, &lag).await;
                assert_eq!(*panics.lock().unwrap(), [""; 0], "seed {}", seed >> 20);
                if rounds == 0 {
                    at_first = resident();
                }
                rounds += 1;
            }
            let (spoilt, grown) = (spoiler.shared.spoilt.load(Ordering::Relaxed), resident().saturating_sub(at_first));
            println!("{rounds} seeds, {spoilt} answers spoilt, {grown} KiB more memory");
            assert!(spoilt >= u64::from(rounds) * 10, "only {spoilt} answers of {rounds} seeds were spoilt");
            assert!(grown <= MOST_GROWTH, "{grown} KiB more after {rounds} seeds");
        });
    });
}

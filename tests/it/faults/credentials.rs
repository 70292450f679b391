//! Passwords, tokens and certificates that change while locks are held and awaited: F61 to F63. Each test is named
//! after its row of the fault table.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Credentials, Error, Owner, Server};
use parking_lot::Mutex;
use support::{
    Action, HANGS, Lag, Match, Proxy, Server as RealServer, Wire, eventually_async, scripts::ACQUIRE, within,
};

use crate::common::{Confirmed as _, LONG, MEDIUM, is_ours, told};

const USER: &str = "worker";
/// The beginning of each password, which no text may contain.
const SECRET: &str = "s3same-";
const CONNECT: Duration = Duration::from_secs(1);

/// A server with a user whose password changes.
struct Rotation {
    server: RealServer,
    wire: Wire,
    /// The password that the program knows.
    known: Arc<Mutex<String>>,
    turns: usize,
}

impl Rotation {
    fn new() -> Self {
        let server = RealServer::start();
        let wire = server.wire();
        let mut rotation = Self { server, wire, known: Arc::default(), turns: 0 };
        rotation.turn();
        rotation.tell();
        rotation
    }

    fn password(&self) -> String {
        Self::password_of(self.turns)
    }

    fn password_of(turn: usize) -> String {
        format!("{SECRET}{turn}")
    }

    /// Changes the server's password, and ends every connection of the user.
    fn turn(&mut self) {
        self.turns += 1;
        let password = format!(">{}", self.password());
        self.wire.must(&["ACL", "SETUSER", USER, "on", "resetpass", &password, "~*", "&*", "+@all"]);
        self.wire.must(&["CLIENT", "KILL", "USER", USER]);
    }

    /// Gives the program the server's password.
    fn tell(&self) {
        *self.known.lock() = self.password();
    }

    /// A server whose provider returns what the program knows, and counts its calls.
    fn provided(&self) -> (Server, Arc<AtomicUsize>) {
        let (known, asked) = (self.known.clone(), Arc::<AtomicUsize>::default());
        let count = asked.clone();
        let server = Server::at("127.0.0.1", self.server.port()).credentials(move || {
            count.fetch_add(1, Ordering::SeqCst);
            let credentials = Credentials::new(USER, known.lock().clone());
            async move { Ok::<_, Error>(credentials) }
        });
        (server, asked)
    }
}

/// Makes several passwords valid at a time, as on a server during a rotation.
fn know_many(wire: &mut Wire) {
    let passwords: Vec<String> = (0..50).map(|turn| format!(">{SECRET}{turn}")).collect();
    let mut user = vec!["ACL", "SETUSER", USER, "on", "~*", "&*", "+@all"];
    user.extend(passwords.iter().map(String::as_str));
    wire.must(&user);
}

async fn connect(server: Server) -> Client {
    let building = Client::builder().server(server).ttl(MEDIUM).connect_timeout(CONNECT).build();
    within(HANGS, "build", building).await.unwrap()
}

async fn turned_down(server: Server) -> Error {
    let building = Client::builder().server(server).connect_timeout(CONNECT).build();
    let error = within(HANGS, "build", building).await.map(drop).expect_err("no password is accepted");
    let text = format!("{error} {error:?}");
    assert!(!text.contains(SECRET), "{text}");
    error
}

#[track_caller]
fn names(error: &Error, words: &[&str]) {
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
}

/// The program gets the new password before the server, at the same time, or after it.
async fn rides_out_rotations(rotation: &mut Rotation, server: Server, tell: impl Fn(&Rotation, &str)) {
    let leases = connect(server).await;
    let held = leases.lock("held").acquire().await.unwrap();
    let waiting = tokio::spawn(leases.lock("held").owner(Owner::unique()).acquire());
    let over = Arc::new(AtomicBool::new(false));
    let cycles: Vec<_> = (0..4)
        .map(|task| {
            let (lock, over) = (leases.lock(format!("job:{task}")), over.clone());
            tokio::spawn(async move {
                let mut cycles = 0;
                while !over.load(Ordering::SeqCst) {
                    match lock.acquire().await {
                        Ok(lease) => drop(lease.release().await),
                        Err(error) => panic!("an acquire rides out a rotation: {error}"),
                    }
                    cycles += 1;
                }
                cycles
            })
        })
        .collect();
    for turn in 0..12 {
        match turn % 3 {
            0 => {
                rotation.turn();
                tell(rotation, &rotation.password());
            }
            // The server changes first, and meanwhile all connections are made anew.
            1 => {
                rotation.turn();
                tokio::time::sleep(Duration::from_millis(100)).await;
                tell(rotation, &rotation.password());
            }
            // The program changes first: a connection lost meanwhile has to wait, and the others continue.
            _ => {
                tell(rotation, &Rotation::password_of(rotation.turns + 1));
                is_ours(&held).await;
                rotation.wire.must(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"]);
                for _ in 0..10 {
                    held.renew().await.expect("an open connection is unaffected");
                }
                rotation.turn();
            }
        }
        is_ours(&held).await;
    }
    over.store(true, Ordering::SeqCst);
    for cycling in cycles {
        assert!(within(HANGS, "the last cycle", cycling).await.unwrap() > 0);
    }
    held.release().await.unwrap();
    drop(within(HANGS, "the waiter", waiting).await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f61_a_password_rotates_under_load_and_a_provider_knows_it() {
    let mut rotation = Rotation::new();
    let (server, asked) = rotation.provided();
    rides_out_rotations(&mut rotation, server, |rotation, password| *rotation.known.lock() = password.into()).await;
    assert!(asked.load(Ordering::SeqCst) >= 8, "each rotation ends all connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f61_a_password_rotates_under_load_and_its_file_is_rewritten() {
    let mut rotation = Rotation::new();
    let file = rotation.server.directory().join("password");
    let write = |password: &str| fs::write(&file, format!("{password}\n")).unwrap();
    write(&rotation.password());
    let url = format!("redis://{USER}@127.0.0.1:{}", rotation.server.port());
    let server = url.parse::<Server>().unwrap().password_file(&file);
    rides_out_rotations(&mut rotation, server, |_, password| write(password)).await;
}

/// The password is wrong for a while: calls fail as in an outage, and waiters keep waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f61_a_program_that_learns_a_password_late_waits_for_it() {
    let mut rotation = Rotation::new();
    let (server, _) = rotation.provided();
    let leases = connect(server).await;
    rotation.turn();
    let (lock, mut last) = (leases.lock("job"), String::new());
    let refused = async {
        while !last.contains("WRONGPASS") {
            last = match lock.try_acquire().await {
                Err(error @ Error::Unavailable(_)) => error.to_string(),
                other => panic!("nothing is refused for good: {other:?}"),
            };
        }
    };
    within(HANGS, "the server's words", refused).await;
    assert!(last.contains("both know the same user and password") && !last.contains(SECRET), "{last}");
    let waiting = tokio::spawn(lock.acquire());
    rotation.tell();
    within(HANGS, "the lock", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// No new connection is made: each AUTH is sent before the previous answer expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f61_open_connections_authenticate_before_their_token_ends() {
    let server = RealServer::start();
    let mut wire = server.wire();
    know_many(&mut wire);
    let proxy = Proxy::to(&server);
    let asked = Arc::<Mutex<Vec<Instant>>>::default();
    let note = asked.clone();
    let token = move || {
        let mut asked = note.lock();
        let token = Credentials::new(USER, format!("{SECRET}{}", asked.len()));
        asked.push(Instant::now());
        async { Ok::<_, Error>(token.valid_for(Duration::from_millis(1_500))) }
    };
    let (leases, lag) = (connect(Server::at("127.0.0.1", proxy.port()).credentials(token)).await, Lag::start());
    let held = leases.lock("held").acquire().await.unwrap();
    // There are three connections; the one for notifications takes no AUTH while it is subscribed.
    told(&leases).await;
    let connections = proxy.connections();
    let authenticated = || proxy.count(Match::command("AUTH")) >= 3 + 2 * 3;
    eventually_async(HANGS, "three tokens for each of two connections after their first", authenticated).await;
    assert_eq!(proxy.connections(), connections, "no new connection was made");
    let asked = asked.lock().clone();
    for pair in asked.windows(2) {
        let between = pair[1] - pair[0];
        assert!(between < Duration::from_millis(1_500) + lag.worst(), "{between:?}");
    }
    assert!((4..=6).contains(&asked.len()), "two connections share an answer: {}", asked.len());
    held.release().await.unwrap().confirmed();
}

/// A token that the server does not know yet: open connections keep using the previous one, and requests in flight on
/// them are unaffected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f61_an_open_connection_outlives_a_token_that_is_refused() {
    let mut rotation = Rotation::new();
    let (known, turn) = (rotation.known.clone(), Arc::<AtomicUsize>::default());
    let count = turn.clone();
    let proxy = Proxy::to(&rotation.server);
    let server = Server::at("127.0.0.1", proxy.port()).credentials(move || {
        count.fetch_add(1, Ordering::SeqCst);
        let token = Credentials::new(USER, known.lock().clone()).valid_for(Duration::from_secs(1));
        async move { Ok::<_, Error>(token) }
    });
    let leases = connect(server).await;
    let held = leases.lock("held").acquire().await.unwrap();
    told(&leases).await;
    let (connections, before) = (proxy.connections(), turn.load(Ordering::SeqCst));
    *rotation.known.lock() = Rotation::password_of(rotation.turns + 1);
    let (lock, refused) = (leases.lock("job"), Match::command("AUTH"));
    let auths = proxy.count(refused.clone());
    let tries = async {
        while proxy.count(refused.clone()) < auths + 4 {
            lock.acquire().await.expect("nothing is refused").release().await.unwrap().confirmed();
            held.renew().await.expect("it is held");
        }
    };
    within(HANGS, "AUTH is tried again", tries).await;
    assert!(turn.load(Ordering::SeqCst) > before + 1, "a token that is refused is asked for again");
    assert_eq!(proxy.connections(), connections, "no new connection was made");
    // The server now knows the token.
    rotation.wire.must(&["ACL", "SETUSER", USER, &format!(">{}", Rotation::password_of(rotation.turns + 1))]);
    let auths = proxy.count(refused.clone());
    eventually_async(HANGS, "the next AUTH", || proxy.count(refused.clone()) > auths).await;
    held.renew().await.unwrap();
    held.release().await.unwrap().confirmed();
}

/// Some servers do not answer an AUTH that they refuse, so the next answer belongs to another request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f61_an_auth_without_an_answer_gives_no_request_the_answer_of_another() {
    let server = RealServer::start();
    know_many(&mut server.wire());
    let stranger = Client::connect(server.url()).await.unwrap();
    let _busy = stranger.lock("busy").acquire().await.unwrap();
    let (proxy, turn) = (Proxy::to(&server), AtomicUsize::new(0));
    let token = move || {
        let token = Credentials::new(USER, format!("{SECRET}{}", turn.fetch_add(1, Ordering::SeqCst)));
        async { Ok::<_, Error>(token.valid_for(Duration::from_secs(1))) }
    };
    let leases = connect(Server::at("127.0.0.1", proxy.port()).credentials(token)).await;
    let held = leases.lock("held").acquire().await.unwrap();
    told(&leases).await;
    // One AUTH on each of the two connections that authenticate before their token ends.
    let skipped = [1, 2].map(|nth| proxy.on(Match::command("AUTH"), nth, Action::Skip));
    for rule in &skipped {
        within(HANGS, "AUTH", rule.hit()).await;
    }
    let before = proxy.count(Match::script(ACQUIRE));
    let first = tokio::spawn(leases.lock("busy").try_acquire());
    // The request may be sent at once or later.
    let _sent_or_not = tokio::time::timeout(Duration::from_millis(100), async {
        while proxy.count(Match::script(ACQUIRE)) == before {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let second = tokio::spawn(leases.lock("free").owner(Owner::anonymous()).try_acquire());
    let first = within(HANGS, "the first", first).await.unwrap().unwrap();
    assert!(first.is_none(), "the other client has it: {first:?}");
    let second = within(HANGS, "the second", second).await.unwrap().unwrap();
    second.expect("it is free").release().await.unwrap().confirmed();
    held.check().unwrap();
    is_ours(&held).await;
    held.release().await.unwrap().confirmed();
}

/// A request that waits for an AUTH to end keeps its own limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f61_an_auth_that_is_slow_costs_no_request_more_than_its_limit() {
    const LIMIT: Duration = Duration::from_millis(300);
    let server = RealServer::start();
    know_many(&mut server.wire());
    let (proxy, turn) = (Proxy::to(&server), AtomicUsize::new(0));
    let token = move || {
        let token = Credentials::new(USER, format!("{SECRET}{}", turn.fetch_add(1, Ordering::SeqCst)));
        async { Ok::<_, Error>(token.valid_for(Duration::from_secs(1))) }
    };
    let leases = connect(Server::at("127.0.0.1", proxy.port()).credentials(token)).await;
    let slow = [1, 2].map(|nth| proxy.on(Match::command("AUTH"), nth, Action::HoldReply));
    for rule in &slow {
        within(HANGS, "AUTH", rule.hit()).await;
    }
    let (lag, began) = (Lag::start(), Instant::now());
    let outcome = within(HANGS, "its end", leases.lock("job").acquire_within(LIMIT)).await;
    let took = began.elapsed();
    assert!(matches!(&outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    assert!(took <= LIMIT + Duration::from_millis(50) + lag.of(2), "{took:?}, the machine lagged {:?}", lag.worst());
    slow.iter().for_each(support::RuleHandle::release);
    within(HANGS, "the lock", leases.lock("job").acquire()).await.unwrap().release().await.unwrap().confirmed();
}

#[tokio::test]
async fn f61_wrong_credentials_are_asked_for_twice_and_refused() {
    let rotation = Rotation::new();
    let wrong = Arc::<AtomicUsize>::default();
    let count = wrong.clone();
    let server = Server::at("127.0.0.1", rotation.server.port()).credentials(move || {
        let turn = count.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, Error>(Credentials::new(USER, format!("{SECRET}wrong-{turn}"))) }
    });
    let error = turned_down(server).await;
    assert!(matches!(error, Error::Refused(_)), "{error}");
    names(&error, &["WRONGPASS", "both know the same user and password"]);
    let asked = wrong.load(Ordering::SeqCst);
    assert!((2..=4).contains(&asked), "two connections, asked for twice or together: {asked}");
}

/// While no known password works, each try to connect asks for credentials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f63_a_provider_that_fails_is_asked_a_few_times_a_second() {
    let rotation = Rotation::new();
    let (asked, fails) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let (count, is_sealed, password) = (asked.clone(), fails.clone(), rotation.password());
    let server = Server::at("127.0.0.1", rotation.server.port()).credentials(move || {
        count.fetch_add(1, Ordering::SeqCst);
        let credentials = Credentials::new(USER, password.clone());
        let answer = if is_sealed.load(Ordering::SeqCst) { Err("sealed") } else { Ok(credentials) };
        async move { answer }
    });
    let leases = connect(server).await;
    fails.store(true, Ordering::SeqCst);
    let mut wire = rotation.server.wire();
    wire.must(&["ACL", "SETUSER", USER, "resetpass", ">another"]);
    let (before, began) = (asked.load(Ordering::SeqCst), Instant::now());
    wire.must(&["CLIENT", "KILL", "USER", USER]);
    eventually_async(HANGS, "it is asked again and again", || asked.load(Ordering::SeqCst) >= before + 8).await;
    // Two calls at once, and then four a second.
    assert!(began.elapsed() >= Duration::from_millis(6 * 250), "eight times in {:?}", began.elapsed());
    leases.close().await;
}

#[tokio::test]
async fn f63_a_provider_that_gives_nothing_is_named() {
    type Answer = fn() -> Result<Credentials, String>;
    let cases: [(Answer, &[&str]); 4] = [
        (|| Err("the vault is sealed".into()), &["their provider has failed: the vault is sealed"]),
        (|| Ok(Credentials::new(USER, "")), &["empty password"]),
        (|| Ok(Credentials::new("", SECRET)), &["empty user"]),
        // Bypasses the panic hook, which writes a backtrace: on a busy machine that takes longer than an answer may.
        (|| std::panic::resume_unwind(Box::new("as it is meant to")), &["their provider has panicked"]),
    ];
    let real = RealServer::start();
    for (answer, says) in cases {
        let error =
            turned_down(Server::at("127.0.0.1", real.port()).credentials(move || async move { answer() })).await;
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        names(&error, says);
    }
    let hangs = Server::at("127.0.0.1", real.port()).credentials(std::future::pending::<Result<Credentials, Error>>);
    let (began, lag) = (Instant::now(), Lag::start());
    let error = turned_down(hangs).await;
    names(&error, &["no credentials: their provider gave none within"]);
    assert!(began.elapsed() < CONNECT + Duration::from_millis(50) + lag.worst(), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_password_file_that_does_not_do_is_named_at_once() {
    let real = RealServer::builder().arg("--requirepass", SECRET).start();
    let file = real.directory().join("password");
    let server = || Server::at("127.0.0.1", real.port()).password_file(&file);
    let fails = async |says: &str| {
        let (began, lag) = (Instant::now(), Lag::start());
        let error = turned_down(server()).await;
        assert!(matches!(error, Error::Config(_)), "{error}");
        names(&error, &["password_file", file.to_str().unwrap(), says]);
        assert!(began.elapsed() < CONNECT / 2 + lag.worst(), "it was tried again");
    };
    fails("cannot be read").await;
    for (text, says) in [("", "is empty"), ("\n", "is empty")] {
        fs::write(&file, text).unwrap();
        fails(says).await;
    }
    fs::write(&file, [0xff, 0xfe]).unwrap();
    fails("UTF-8").await;
    for text in [SECRET.to_owned(), format!("{SECRET}\n"), format!("{SECRET}\r\n")] {
        fs::write(&file, text).unwrap();
        connect(server()).await.lock("job").acquire().await.unwrap().release().await.unwrap().confirmed();
    }
}

/// After its first answer the provider does this for ever. Only a new connection is kept waiting, and only for a
/// quarter of the connect time-out.
async fn goes_on_with_the_last_answer(later: fn() -> Option<Credentials>) {
    let mut rotation = Rotation::new();
    let (password, hangs) = (rotation.password(), Arc::<AtomicBool>::default());
    let is_over = hangs.clone();
    let server = Server::at("127.0.0.1", rotation.server.port()).credentials(move || {
        let (is_over, first) = (is_over.load(Ordering::SeqCst), Credentials::new(USER, password.clone()));
        let answer = if is_over { later() } else { Some(first) };
        async move {
            match answer {
                Some(credentials) => Ok::<_, Error>(credentials),
                None => std::future::pending().await,
            }
        }
    });
    let leases = connect(server).await;
    let held = leases.lock("held").acquire().await.unwrap();
    hangs.store(true, Ordering::SeqCst);
    let began = Instant::now();
    // Longer than the second for which its answer is fresh, and the time after which its call is given up.
    while began.elapsed() < CONNECT * 3 {
        rotation.wire.must(&["CLIENT", "KILL", "USER", USER]);
        is_ours(&held).await;
        leases.lock("job").acquire().await.unwrap().release().await.unwrap();
    }
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f63_a_provider_that_hangs_holds_up_no_renewal() {
    goes_on_with_the_last_answer(|| None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f63_a_provider_that_blocks_its_thread_holds_up_no_renewal() {
    goes_on_with_the_last_answer(|| {
        std::thread::sleep(HANGS * 2);
        None
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f63_a_provider_that_panics_later_takes_nothing_away() {
    goes_on_with_the_last_answer(|| panic!("a provider, as it is meant to")).await;
}

mod tls {
    use leasehold::Tls;

    use super::*;

    fn server_with_clients() -> RealServer {
        RealServer::builder().tls(true).tls_clients(true).start()
    }

    fn at(server: &RealServer, tls: Tls) -> Server {
        Server::at("127.0.0.1", server.tls_port()).tls(tls.ca_file(server.ca_pem_path()))
    }

    #[tokio::test]
    async fn a_client_certificate_lets_us_in_and_each_mistake_is_named() {
        let server = server_with_clients();
        let ([certificate, key], [expired, expired_key]) = (server.client_pem_paths(), server.expired_pem_paths());
        let stranger = server_with_clients();
        let [strange, strange_key] = stranger.client_pem_paths();
        let read = |path: &Path| fs::read(path).unwrap();
        let good = Tls::new().client_cert_files(&certificate, &key);
        let by_text = Tls::new().client_cert_pem(read(&certificate), read(&key));
        let url: Server = server.tls_url().parse().unwrap();
        for server in [
            at(&server, good.clone()),
            at(&server, by_text.clone().server_name("localhost")),
            url.tls(by_text.ca_pem(read(&server.ca_pem_path()))),
        ] {
            connect(server).await.lock("job").acquire().await.unwrap().release().await.unwrap().confirmed();
        }
        let empty = server.directory().join("empty.pem");
        fs::write(&empty, "").unwrap();
        let missing = server.directory().join("missing.pem");
        let to = |tls| Server::at("127.0.0.1", server.tls_port()).tls(tls);
        // OpenSSL reads both files at once.
        let rustls = |says| if cfg!(feature = "tls-rustls") { says } else { "are no certificate and its PKCS #8 key" };
        for (server, kind, says) in [
            (at(&server, Tls::new()), "Refused", "it wants a certificate of ours"),
            (
                at(&server, Tls::new().client_cert_files(&expired, &expired_key)),
                "Refused",
                "our certificate has expired",
            ),
            (
                at(&server, Tls::new().client_cert_files(&strange, &strange_key)),
                "Refused",
                "authority of our certificate",
            ),
            (to(good.clone().ca_file(stranger.ca_pem_path())), "Refused", "is not in ca_file"),
            (at(&server, good.clone().server_name("elsewhere.example")), "Refused", "for another name"),
            (
                at(&server, Tls::new().client_cert_files(&certificate, &expired_key)),
                "Config",
                "does not go with its key",
            ),
            (at(&server, Tls::new().client_cert_files(&certificate, &empty)), "Config", rustls("has no private key")),
            (at(&server, Tls::new().client_cert_files(&key, &key)), "Config", rustls("has no certificate")),
            (at(&server, Tls::new().client_cert_files(&missing, &key)), "Config", "missing.pem, which cannot be read"),
            (to(good.clone().ca_file(&empty)), "Config", "has no certificate"),
            (to(good.clone().ca_pem("-----BEGIN CERTIFICATE-----\nnone")), "Config", "is no PEM"),
        ] {
            let error = turned_down(server).await;
            let is_kind = match kind {
                "Refused" => matches!(error, Error::Refused(_)),
                _ => matches!(error, Error::Config(_)),
            };
            assert!(is_kind, "{kind}: {error:?}");
            names(&error, &[says]);
        }
        // Any certificate is accepted.
        let anybody = connect(to(good.danger_accept_any_certificate())).await;
        anybody.lock("job").acquire().await.unwrap().release().await.unwrap().confirmed();
    }

    /// The files are replaced while a lock is held, first by invalid ones and then by valid ones.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f62_a_certificate_is_replaced_while_a_lock_is_held() {
        let server = server_with_clients();
        let ([good, good_key], [expired, expired_key]) = (server.client_pem_paths(), server.expired_pem_paths());
        let [ours, our_key] = ["ours.pem", "ours.key"].map(|name| server.directory().join(name));
        let replace = |certificate: &Path, key: &Path| {
            fs::copy(certificate, &ours).unwrap();
            fs::copy(key, &our_key).unwrap();
        };
        replace(&good, &good_key);
        let server_of_it = at(&server, Tls::new().client_cert_files(&ours, &our_key));
        let building = Client::builder().server(server_of_it).ttl(LONG).connect_timeout(CONNECT).build();
        let leases = within(HANGS, "build", building).await.unwrap();
        let held = leases.lock("held").acquire().await.unwrap();
        let mut wire = server.wire();
        let mut end_all = || drop(wire.must(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]));
        replace(&expired, &expired_key);
        end_all();
        let mut last = String::new();
        let refused = async {
            while !last.contains("our certificate has expired") {
                last = leases
                    .lock("job")
                    .try_acquire()
                    .await
                    .map(drop)
                    .map_or_else(|error| error.to_string(), |()| String::new());
            }
        };
        within(HANGS, "the server's alert", refused).await;
        // Once the files are valid again, it recovers by itself.
        replace(&good, &good_key);
        is_ours(&held).await;
        held.release().await.unwrap().confirmed();
    }
}

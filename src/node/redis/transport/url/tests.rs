use super::*;

fn one(url: &str) -> Target {
    let seeds = Seeds::parse(url).unwrap();
    assert!(seeds.is_alone(), "{url}");
    seeds.target
}

fn tcp(host: &str, port: u16, tls: bool) -> Address {
    Address::Tcp { host: host.into(), port, tls }
}

#[test]
fn the_usual_urls() {
    let plain = one("redis://localhost");
    assert_eq!((&plain.address, plain.database, plain.user), (&tcp("localhost", 6379, false), None, None));

    let full = one("rediss://worker:p%40ss@redis.example:7000/3");
    assert_eq!(full.address, tcp("redis.example", 7000, true));
    assert_eq!(
        (full.user.as_deref(), full.password.as_deref(), full.database),
        (Some("worker"), Some("p@ss"), Some(3))
    );

    assert_eq!(one("redis://LOCALhost").address, plain.address);

    let default_user = one("redis://:secret@[::1]:7000");
    assert_eq!((default_user.user, default_user.address.clone()), (None, tcp("::1", 7000, false)));

    let socket = one("unix:///run/redis.sock?db=2&user=worker&password=p%26");
    assert_eq!(socket.address, Address::Unix("/run/redis.sock".into()));
    assert_eq!((socket.database, socket.password.as_deref()), (Some(2), Some("p&")));
}

#[test]
fn a_url_names_some_servers_and_who_we_are_on_all_of_them() {
    let seeds = Seeds::parse("redis-cluster://worker:p%40ss@one,[::1]:7000,10.0.0.3:7001").unwrap();
    assert_eq!(seeds.to_string(), "one:6379,[::1]:7000,10.0.0.3:7001");
    assert_eq!((seeds.target.user.as_deref(), seeds.target.password.as_deref()), (Some("worker"), Some("p@ss")));
    let seeds = Seeds::parse("redis-cluster://worker:p,ss,1@one,two").unwrap();
    assert_eq!((seeds.to_string().as_str(), seeds.target.password.as_deref()), ("one:6379,two:6379", Some("p,ss,1")));
    assert!(Seeds::parse("redis-sentinel://one/locks?sentinel_password=a,b://c").is_ok());
    for same in ["redis+cluster://one:6379", "valkey-cluster://one/", "REDIS-CLUSTER://one/0"] {
        assert_eq!(Seeds::parse(same).unwrap().to_string(), "one:6379", "{same}");
    }
    assert!(Seeds::parse("redis://one").unwrap().is_alone() && Seeds::parse("one,two").is_err());
}

#[test]
fn a_url_names_sentinels_their_service_and_who_we_are_on_both_kinds_of_servers() {
    let seeds =
        Seeds::parse("redis-sentinel://worker:p%40ss@one,[::1]:7000/locks/3?sentinel_user=w&sentinel_password=a%40b")
            .unwrap();
    assert_eq!((seeds.to_string().as_str(), seeds.service()), ("one:26379,[::1]:7000", Some("locks")));
    let data = &seeds.target;
    assert_eq!(
        (data.user.as_deref(), data.password.as_deref(), data.database),
        (Some("worker"), Some("p@ss"), Some(3))
    );
    for sentinel in seeds.targets() {
        assert_eq!((sentinel.user.as_deref(), sentinel.password.as_deref()), (Some("w"), Some("a@b")));
        assert_eq!(sentinel.database, None);
    }
    for (url, data, sentinels) in [
        ("redis+sentinel://[::1]/my%20locks", false, false),
        ("rediss-sentinel://one/locks", true, true),
        ("valkeys-sentinel://one/locks?sentinel_tls=no", true, false),
        ("valkey+sentinel://one/locks?sentinel_tls=yes", false, true),
    ] {
        let seeds = Seeds::parse(url).unwrap();
        let is_tls = |target: &Target| matches!(target.address, Address::Tcp { tls: true, .. });
        let of_sentinels: Vec<bool> = seeds.targets().iter().map(is_tls).collect();
        assert_eq!((is_tls(&seeds.target), of_sentinels), (data, vec![sentinels]), "{url}");
    }
    assert_eq!(Seeds::parse("redis+sentinel://[::1]/my%20locks").unwrap().to_string(), "[::1]:26379");
}

#[test]
fn what_is_wrong_is_named() {
    let many = format!("redis-cluster://{}", ["h"; 65].join(","));
    for (url, says) in [
        (&*many, "65 hosts"),
        ("localhost:6379", "scheme \"localhost\""),
        ("", "it is empty"),
        ("127.0.0.1:6379", "no redis:// before it"),
        ("http://localhost", "scheme \"http\""),
        ("redis://", "host"),
        ("redis://localhost:99999", "not a URL"),
        ("redis://localhost:0", "port is 0"),
        ("redis://one,two", "several hosts"),
        ("redis://one:1,two:2", "several hosts"),
        ("redis://one,redis://two", "several hosts"),
        ("redis://localhost/first", "database \"first\""),
        ("redis://localhost/256", "database \"256\""),
        ("redis://localhost?timeout=3", "parameter \"timeout\""),
        ("redis://:a#b@localhost", "host"),
        ("unix://run/redis.sock", "three slashes"),
        ("unix:///", "no socket"),
        ("unix:///run/redis.sock?dbb=1", "parameter \"dbb\""),
        ("unix:///run/redis.sock?password=a&b", "& is %26"),
        ("unix:///run/redis.sock?password=a#b", "# in a password is %23"),
        ("redis-cluster://", "host that is empty"),
        ("redis-cluster://one,,two", "host that is empty"),
        ("redis-cluster://one:0", "port is 0"),
        ("redis-cluster://one:99999", "not a URL"),
        ("redis-cluster://one/3", "no databases"),
        ("redis-cluster:///run/redis.sock", "host that is empty"),
        ("redis-cluster://one?timeout=3", "parameter \"timeout\""),
        ("redis-cluster://one?tls_name=a", "no TLS"),
        ("rediss-cluster://one?tls_name=", "tls_name is empty"),
        ("redis-cluster://one#two", "fragment"),
        ("redis-cluster://one,redis-cluster://two", "write it once"),
        ("redis-cluster://one:1,redis://two:2", "write it once"),
        ("redis-cluster://:sesame@one,redis-cluster://:sesame@two", "write it once"),
        ("redis-cluster://one, two", "commas only"),
        ("redis-cluster://one:1 ,two:2", "commas only"),
        ("redis-cluster://one,:sesame@two", "before the first host"),
        ("redis-cluster://one:7000,:sesame@two:7001", "before the first host"),
        ("redis-cluster://:sesame@one,:sesame@two", "before the first host"),
        ("redis-sentinel://one,redis-sentinel://two/locks", "write it once"),
        ("redis-sentinel://one, two/locks", "commas only"),
        ("redis-sentinel://one,:sesame@two/locks", "before the first host"),
        ("redis-sentinel://one", "names no service"),
        ("redis-sentinel://one/", "names no service"),
        ("redis-sentinel:///locks", "host that is empty"),
        ("redis-sentinel://one/locks/x", "database \"x\""),
        ("redis-sentinel://one/locks?timeout=3", "parameter \"timeout\""),
        ("redis-sentinel://one/locks?sentinel_tls=1", "neither yes nor no"),
        ("redis-sentinel://one/locks?sentinel_user=a", "no sentinel_password"),
        ("redis-sentinel://one/locks?tls_name=a", "no TLS"),
        ("redis-sentinel://one/locks#x", "fragment"),
    ] {
        let error = Seeds::parse(url).expect_err(url).to_string();
        assert!(error.contains(says) && !error.contains("sesame"), "{url}: {error}");
    }
}

#[test]
fn nothing_shows_the_password() {
    for right in ["redis://worker:sesame@localhost/1", "redis-cluster://worker:sesame@one,two"] {
        let seeds = Seeds::parse(right).unwrap();
        assert!(!format!("{seeds:?} {seeds} {:?} {}", seeds.target, seeds.target).contains("sesame"));
    }
    for wrong in [
        "redis://worker:123/sesame@localhost",
        "redis://worker:12?sesame@localhost",
        "redis://worker:12?a=b/sesame@localhost",
        "redis://worker:12?sesame=b&c@localhost",
        "redis://worker:12/sesame?c@localhost",
        "unix:///run/redis.sock?password=12&sesame",
        "unix:///run/redis.sock?password=12&db=sesame",
        "redis://worker:sesame@localhost/x",
        "redis://worker:sesame@",
        "foo://worker:sesame@localhost",
        "redis-cluster://worker:12/sesame@one,two",
        "redis-cluster://worker:12?sesame@one,two",
        "redis-cluster://worker:12#sesame@one,two",
        "redis-cluster://worker:12@sesame@one,two:0",
        "redis-cluster://worker:sesame@one,two:x",
        "redis-cluster://worker:sesame@one/3",
        "redis-cluster://worker:sesame@",
        "redis-sentinel://worker:12/sesame@one/locks",
        "redis-sentinel://one/locks?sentinel_password=12&sesame",
        "redis-sentinel://one/locks?sentinel_password=12@sesame",
        "redis-sentinel://one/locks?sentinel_password=12#sesame",
        "redis-sentinel://one/locks?sentinel_password=sesame&sentinel_tls=maybe",
        "redis-sentinel://one/locks?sentinel_password=12@x/sesame/sesame",
    ] {
        let error = Seeds::parse(wrong).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("sesame"), "{error}");
    }
}

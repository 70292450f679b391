use std::net::{TcpListener, TcpStream};

use super::*;

fn of(kind: ErrorKind, details: &'static str) -> Failure {
    classify(("h:1", RequiredKind::Alone), &Error::new(kind, details), Duration::from_secs(1))
}

#[test]
fn an_error_reply_was_not_executed_and_names_the_servers_reason() {
    for (reply, refused) in [
        ("WRONGPASS invalid username-password pair", true),
        ("NOAUTH Authentication required.", true),
        ("NOPERM this user has no permissions to run the 'evalsha' command", true),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", true),
        ("LOADING Redis is loading the dataset in memory", false),
        ("READONLY You can't write against a read only replica.", false),
        ("MASTERDOWN Link with MASTER is down", false),
        ("MOVED 9189 127.0.0.1:7941", true),
        ("ASK 9189 127.0.0.1:7941", true),
        ("CROSSSLOT Keys in request don't hash to the same slot", true),
        ("ERR max number of clients reached", false),
        ("ERR max number of clients + cluster connections reached", false),
    ] {
        let failure = of(ErrorKind::Other, reply);
        assert_eq!((failure.is_refusal(), failure.may_have_happened()), (refused, false), "{failure}");
        assert!(failure.to_string().contains(reply), "{failure}");
    }
}

#[test]
fn a_replica_has_done_nothing_of_a_script() {
    for reply in [
        "READONLY You can't write against a read only replica. script: ab12, on @user_script:20.",
        "ERR Error running script (call to f_7da5): @user_script:30: @user_script: 30: -READONLY You can't write \
         against a read only replica.",
    ] {
        let failure = of(ErrorKind::Other, reply);
        assert!(!failure.may_have_happened() && !failure.is_refusal(), "{failure}");
        assert!(is_no_primary(reply) && failure.to_string().contains("name a primary"), "{failure}");
    }
}

#[test]
fn the_advice_is_that_for_the_servers_which_the_url_names() {
    use RequiredKind::{Alone, InCluster, Named};
    for (wanted, reply, advice) in [
        (Alone, "READONLY You can't write against a read only replica.", "the url must name a primary"),
        (Named, "READONLY You can't write against a read only replica.", "see to the Sentinels"),
        (InCluster, "READONLY You can't write against a read only replica.", "see to its cluster"),
        (Named, "MASTERDOWN Link with MASTER is down", "see to the Sentinels"),
        (Alone, "MOVED 9189 127.0.0.1:7941", "or be a redis-cluster://"),
        (InCluster, "MOVED 9189 127.0.0.1:7941", "another server of the cluster has that slot"),
        (InCluster, "CLUSTERDOWN The cluster is down", "see to the servers that it lacks"),
        (InCluster, "CLUSTERDOWN Hash slot not served", "no server has the slot of this key"),
    ] {
        let error = Error::new(ErrorKind::Other, reply);
        let texts = [classify(("h:1", wanted), &error, Duration::from_secs(1)), not_extended(reply, wanted)];
        assert!(texts.iter().all(|failure| failure.to_string().contains(advice)), "{wanted:?} {reply}: {texts:?}");
    }
}

#[test]
fn a_neighbours_clusterdown_says_nothing_of_what_was_executed() {
    for reply in ["CLUSTERDOWN The cluster is down", "ERR Script attempted to access a non local key in a cluster node"]
    {
        let failure = of(ErrorKind::Other, reply);
        assert!(failure.may_have_happened() && !failure.is_refusal(), "{failure}");
    }
}

#[test]
fn an_error_from_inside_a_script_may_have_done_a_part() {
    let failure = of(ErrorKind::Other, "OOM command not allowed script: ab12, on @user_script:20.");
    assert!(failure.may_have_happened() && !failure.is_refusal());
    // The line number in the script does not help a user.
    assert!(failure.to_string().contains("said \"OOM command not allowed\""), "{failure}");
    let failure = of(ErrorKind::Other, "ERR The user executing the script can't run this command or subcommand");
    assert!(failure.may_have_happened() && failure.is_refusal());
    // Redis 6.2.
    let failure = of(
        ErrorKind::Other,
        "ERR Error running script (call to f_7da5): @user_script:108: @user_script: 108: The user executing the \
         script can't run this command or subcommand",
    );
    assert!(failure.may_have_happened() && failure.is_refusal(), "{failure}");
    assert!(failure.to_string().contains("give the user the rights"), "{failure}");
    assert!(failure.to_string().contains("said \"The user executing the script can't"), "{failure}");
}

#[test]
fn a_missing_right_is_told_by_its_command_or_its_key() {
    let source = "local value = redis.pcall('GET', lock)\nif redis.call('SET', lock, 'x') then\nend";
    let keys = |count: usize| move || (0..count).map(|key| format!("k{key}")).collect::<Vec<_>>();
    let more = |details, count| missing_right(details, source, keys(count)).unwrap_or_default();
    // Redis 7.0, where the script stopped, and where it caught the error.
    let no_command = "ERR The user executing the script can't run this command or subcommand";
    let at = format!("{no_command} script: ab12, on @user_script:2.");
    assert_eq!(more(&at, 1), " of a script that runs SET");
    assert_eq!(more(no_command, 1), " of a script that runs GET, SET");
    // Redis 6.2.
    let caught = "@user_script: 1: The user executing the script can't run this command or subcommand";
    let wrapped = format!("{WRAPPED} (call to f_7da5): @user_script:2: @user_script: 2: The user executing the script");
    assert_eq!((more(caught, 1), more(&wrapped, 1)), (more("ERR, user_script:1", 1), more(&at, 1)));
    let failure = of(ErrorKind::Other, caught);
    assert!(failure.is_refusal() && failure.to_string().contains("said \"The user executing"), "{failure}");
    // Redis 7.4 and later name the command.
    let named = "ERR ACL failure in script: User worker has no permissions to run the 'mget' command script: ab12, \
                 on @user_script:20.";
    assert_eq!(more(named, 1), "");
    let failure = of(ErrorKind::Other, named);
    assert!(
        failure.to_string().contains(
            "said \"ERR ACL failure in script: User worker has no permissions to run the 'mget' command\": give"
        ),
        "{failure}"
    );
    let no_key = "NOPERM No permissions to access a key";
    assert_eq!(more(no_key, 1), " of the key \"k0\"");
    assert_eq!(more(no_key, 3), " of the keys \"k0\", \"k1\" and \"k2\"");
    assert_eq!(more(no_key, 500), " of 500 keys from \"k0\" on");
}

#[test]
fn the_systems_errors_are_told_in_its_words() {
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
    let refused = Error::new(ErrorKind::Other, format!("{:?}", TcpStream::connect(nobody).unwrap_err()));
    assert_eq!((words(&refused), refused.details().starts_with("Os {")), ("Connection refused", true));
    for (details, told) in [
        ("Os { no such thing", "Os { no such thing"),
        ("Custom { kind: Uncategorized, error: \"no such name\" }", "no such name"),
        ("Decode Error: frame_type: Invalid frame type.", "what it answers is not Redis' protocol (TLS is rediss://)"),
    ] {
        assert_eq!(words(&Error::new(ErrorKind::Other, details)), told);
    }
}

#[test]
fn a_limit_is_told_as_it_was_asked_for() {
    for (limit, told) in [(999_974_122, "1 s"), (250_000_000, "250 ms"), (400_000, "400 µs"), (0, "0 s")] {
        let late = Error::new(ErrorKind::Timeout, "Request timed out.");
        let failure = classify(("h:1", RequiredKind::Alone), &late, Duration::from_nanos(limit));
        assert!(failure.to_string().ends_with(&format!(" within {told}")), "{failure}");
    }
}

#[test]
fn silence_and_a_broken_connection_tell_nothing() {
    for (kind, details) in [
        (ErrorKind::Timeout, "Request timed out."),
        (ErrorKind::Other, "Connection reset by peer (os error 104)"),
        (ErrorKind::Other, "Failed to send command to router."),
    ] {
        assert!(of(kind, details).may_have_happened(), "{details}");
    }
    assert!(!of(ErrorKind::Unsent, "whatever it says").may_have_happened());
}

#[test]
fn a_refusal_of_a_key_is_none_of_the_server() {
    for (reply, is_of_a_key) in [
        ("WRONGTYPE Operation against a key holding the wrong kind of value", true),
        ("ERR the fence key job:lh:fence holds no fence: delete it to go on", true),
        ("NOPERM No permissions to access a key", true),
        ("NOPERM this user has no permissions to access one of the keys used as arguments", true),
        ("NOPERM User worker has no permissions to access the 'job' key", true),
        (
            "ERR ACL failure in script: User worker has no permissions to access the 'job' key script: ab12, on @user_script:20.",
            true,
        ),
        ("NOPERM User worker has no permissions to run the 'get' command", false),
        ("NOPERM User worker has no permissions to access the 'leasehold:1' channel", false),
        ("WRONGPASS invalid username-password pair", false),
        ("OOM command not allowed", false),
    ] {
        assert_eq!(of(ErrorKind::Other, reply).is_of_a_key(), is_of_a_key, "{reply}");
    }
}

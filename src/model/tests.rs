use super::*;
use stateright::Checker;

fn setup(name: &'static str, nodes: &[Clock]) -> Setup {
    let token = |client: u64, number: u64| {
        let uuid = Uuid::from_u64_pair(client, number);
        Token::parse(&format!("lh1:{uuid}@client-{client}.{number}")).unwrap()
    };
    Setup {
        name,
        clients: Clock { offset: 5_000_000_000, rate: 1_000 },
        nodes: nodes.to_vec(),
        attempts: 2,
        faults: Faults::default(),
        step: 0,
        closes: TTL * 7 / 4,
        restart_delay: Duration::ZERO,
        watches_after: None,
        proposes: None,
        flaw: Flaw::None,
        key: Key::new("", "job").unwrap(),
        tokens: (0..2).map(|client| (0..8).map(|number| token(client, number)).collect()).collect(),
    }
}
const EPOCH: u64 = 1_000_000_000_000_000;
const FAST: Clock = Clock { offset: EPOCH, rate: 1_010 };

fn run(setup: Setup) {
    let start = std::time::Instant::now();
    let checker = setup.clone().checker().threads(1).target_state_count(20_000_000).spawn_bfs().join();
    println!("{}: unique {} generated {} depth {} done {} in {:?}", setup.name, checker.unique_state_count(), checker.state_count(), checker.max_depth(), checker.is_done(), start.elapsed());
    for (name, path) in checker.discoveries() {
        println!("   {name}: {} steps", path.clone().into_actions().len());
        if setup.property(name).expectation.discovery_is_failure() {
            for (state, action) in path.into_vec() { println!("{:>8} {action:?}", state.now / 1000_000); }
        }
    }
}

#[test]
fn tune() {
    let which = std::env::var("MODEL").unwrap_or_default();
    let base = setup("one, calm", &[FAST]);
    let f = Faults::default();
    let three = [FAST, Clock { offset: EPOCH + 300_000_000, rate: 990 }, Clock { offset: EPOCH + 100_000_000, rate: 1_000 }];
    match which.as_str() {
        "1" => run(base),
        "1l1" => run(Setup { faults: Faults { late: 1, ..f }, ..base }),
        "1l2" => run(Setup { faults: Faults { late: 2, ..f }, ..base }),
        "1all" => run(Setup { faults: Faults { late: 1, doubled: 1, deaths: 1, pauses: 1, ..f }, ..base }),
        "3" => run(Setup { attempts: 1, ..setup("three", &three) }),
        "3.2" => run(setup("three", &three)),
        "3l1" => run(Setup { attempts: 1, faults: Faults { late: 1, ..f },  ..setup("three", &three) }),
        _ => {}
    }
}

use super::*;
use crate::token::Token;

const TTL: Duration = Duration::from_secs(1);

fn fence(number: u64) -> Fence {
    Fence::try_from(number).unwrap()
}

#[allow(clippy::unnecessary_wraps, reason = "it stands beside answers that are none")]
fn granted(number: u64) -> Result<Acquired, Failure> {
    Ok(Acquired::Granted(fence(number)))
}

#[allow(clippy::unnecessary_wraps, reason = "as above")]
fn busy(token: &Token, remaining_ms: u64) -> Result<Acquired, Failure> {
    let remaining = Some(Duration::from_millis(remaining_ms));
    let holder = Holder::of(Some(token.clone()), remaining, Some(fence(7)));
    Ok(Acquired::Busy { holder, tracked: true })
}

fn silence() -> Result<Acquired, Failure> {
    Err(Failure::unknown("no answer"))
}

fn down() -> Result<Acquired, Failure> {
    Err(Failure::unavailable("not connected"))
}

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

fn nodes(of: &[usize]) -> Nodes {
    of.iter().copied().collect()
}

fn waits(step: &Step) -> bool {
    matches!(step, Step::Wait)
}

fn won(step: &Step, number: u64) -> bool {
    matches!(step, Step::Won { fence: won, .. } if *won == fence(number))
}

mod one_node {
    use super::*;

    #[test]
    fn a_grant_in_time_wins_from_the_send() {
        let mut attempt = Attempt::new(at(100), TTL, 1);
        let step = attempt.answer(at(1_087), 0, granted(7));
        assert!(matches!(&step, Step::Won { fence: f, tally } if *f == fence(7) && tally.confirmed() == at(100)));
        assert!(attempt.must_undo().is_empty());
    }

    #[test]
    fn a_grant_at_the_deadline_is_undone() {
        // 1 s minus 1 % and 2 ms.
        let mut attempt = Attempt::new(at(100), TTL, 1);
        assert!(matches!(attempt.answer(at(1_088), 0, granted(7)), Step::Lost(Verdict::Failed(_))));
        assert_eq!(attempt.must_undo(), nodes(&[0]));
    }

    #[test]
    fn busy_and_a_definite_no_leave_nothing_to_undo() {
        for answer in [busy(&Token::random("h:1"), 5), Err(Failure::refused("NOPERM"))] {
            let mut attempt = Attempt::new(at(0), TTL, 1);
            let step = attempt.answer(at(1), 0, answer);
            assert!(!waits(&step) && attempt.must_undo().is_empty());
        }
    }

    #[test]
    fn silence_is_undone() {
        let mut attempt = Attempt::new(at(0), TTL, 1);
        assert!(matches!(attempt.answer(at(1), 0, silence()), Step::Lost(Verdict::Failed(_))));
        assert_eq!(attempt.must_undo(), nodes(&[0]));
    }

    #[test]
    fn when_it_was_given_up_a_grant_is_undone_too() {
        assert!(late(&granted(7)) && late(&silence()));
        assert!(!late(&busy(&Token::random("h:1"), 5)) && !late(&Err(Failure::refused("NOPERM"))));
        assert!(!late(&Ok(Acquired::Recovering(TTL))));
    }
}

#[test]
fn a_majority_that_drew_alike_needs_no_second_phase() {
    let mut attempt = Attempt::new(at(0), TTL, 5);
    assert!(waits(&attempt.answer(at(1), 4, granted(50))));
    assert!(waits(&attempt.answer(at(1), 1, silence())));
    assert!(waits(&attempt.answer(at(1), 0, granted(50))));
    let step = attempt.answer(at(2), 2, granted(50));
    assert!(won(&step, 50), "{step:?}");
    assert!(attempt.must_undo().is_empty(), "a silent node is left to the watchdog");
}

#[test]
fn otherwise_the_floors_are_lifted_to_the_largest_first() {
    let mut attempt = Attempt::new(at(0), TTL, 3);
    assert!(waits(&attempt.answer(at(1), 0, granted(100))));
    let step = attempt.answer(at(1), 1, granted(200));
    assert!(matches!(step, Step::Raise { fence: to, on } if to == fence(200) && on == nodes(&[0])), "{step:?}");
    let step = attempt.raised(at(2), 0, Ok(Ok(())));
    assert!(won(&step, 200), "{step:?}");
}

#[test]
fn who_grants_during_the_second_phase_stands_in_for_who_fails() {
    let mut attempt = Attempt::new(at(0), TTL, 3);
    let _ = attempt.answer(at(1), 0, granted(100));
    let _ = attempt.answer(at(1), 1, granted(200));
    let step = attempt.answer(at(1), 2, granted(150));
    assert!(matches!(step, Step::Raise { fence: to, on } if to == fence(200) && on == nodes(&[2])), "{step:?}");
    assert!(waits(&attempt.raised(at(2), 0, Ok(Err(Denial::Gone)))), "the third may still be lifted");
    assert!(won(&attempt.raised(at(2), 2, Ok(Ok(()))), 200));
}

#[test]
fn who_drew_more_meanwhile_counts_as_lifted() {
    let mut attempt = Attempt::new(at(0), TTL, 3);
    let _ = attempt.answer(at(1), 0, granted(100));
    let _ = attempt.answer(at(1), 1, granted(200));
    assert!(won(&attempt.answer(at(1), 2, granted(300)), 200));
}

#[test]
fn a_second_phase_that_ends_too_late_or_without_a_majority_is_no_win() {
    for (now, answer) in
        [(at(988), Ok(Ok(()))), (at(2), Ok(Err(Denial::Taken))), (at(2), Err(Failure::unknown("no answer")))]
    {
        let undo = if matches!(answer, Ok(Err(_))) { nodes(&[1]) } else { nodes(&[0, 1]) };
        let mut attempt = Attempt::new(at(0), TTL, 3);
        let _ = attempt.answer(at(1), 2, down());
        let _ = attempt.answer(at(1), 0, granted(100));
        let _ = attempt.answer(at(1), 1, granted(200));
        let step = attempt.raised(now, 0, answer);
        assert!(matches!(step, Step::Lost(Verdict::Failed(_))), "{step:?}");
        assert_eq!(attempt.must_undo(), undo);
    }
}

#[test]
fn a_holder_of_a_majority_is_waited_for_until_enough_of_its_keys_expire() {
    let holder = Token::random("other:1");
    let mut attempt = Attempt::new(at(0), TTL, 5);
    let _ = attempt.answer(at(1), 0, busy(&holder, 300));
    assert!(waits(&attempt.answer(at(1), 3, granted(9))));
    let _ = attempt.answer(at(1), 1, busy(&holder, 100));
    let step = attempt.answer(at(1), 2, busy(&holder, 200));
    let Step::Lost(Verdict::Busy { holder: found, needs, tracked }) = step else { panic!("{step:?}") };
    assert_eq!((found.token(), found.remaining()), (Some(holder.identity()), Some(Duration::from_millis(200))));
    let of = [0, 1, 2, 4].into_iter().collect();
    assert_eq!((needs, tracked), (WakeCondition { count: 2, of }, true), "one is free, three are needed");
    assert_eq!(attempt.must_undo(), nodes(&[3]), "the fourth has not answered: its answer decides");
}

#[test]
fn when_nobody_has_a_majority_the_votes_are_split() {
    let (one, two) = (Token::random("one:1"), Token::random("two:2"));
    let mut attempt = Attempt::new(at(0), TTL, 5);
    let _ = attempt.answer(at(1), 0, granted(5));
    let _ = attempt.answer(at(1), 1, busy(&one, 100));
    let _ = attempt.answer(at(1), 2, busy(&one, 100));
    assert!(waits(&attempt.answer(at(1), 3, busy(&two, 100))), "the fifth may make one of them the holder");
    let step = attempt.answer(at(1), 4, silence());
    assert!(matches!(&step, Step::Lost(Verdict::Split { holder }) if holder.label() == Some("one:1")), "{step:?}");
    assert_eq!(attempt.must_undo(), nodes(&[0, 4]));
}

#[test]
fn where_half_of_the_votes_are_somebody_elses_their_holder_is_told() {
    let other = Token::random("one:1");
    let mut attempt = Attempt::new(at(0), TTL, 4);
    for node in [0, 1] {
        assert!(waits(&attempt.answer(at(1), node, granted(5))));
    }
    assert!(waits(&attempt.answer(at(1), 2, busy(&other, 100))));
    let step = attempt.answer(at(1), 3, busy(&other, 100));
    assert!(matches!(&step, Step::Lost(Verdict::Split { holder }) if holder.label() == Some("one:1")), "{step:?}");
}

#[test]
fn votes_are_not_split_while_we_may_have_a_majority() {
    let mut attempt = Attempt::new(at(0), TTL, 5);
    let _ = attempt.answer(at(1), 0, busy(&Token::random("one:1"), 100));
    let _ = attempt.answer(at(1), 1, busy(&Token::random("two:2"), 100));
    let _ = attempt.answer(at(1), 2, granted(5));
    assert!(waits(&attempt.answer(at(1), 3, granted(5))), "the fifth may grant it too");
    assert!(won(&attempt.answer(at(1), 4, granted(5)), 5));
}

#[test]
fn votes_are_not_split_while_somebody_may_have_a_majority() {
    let (one, left_over) = (Token::random("one:1"), Token::random("two:2"));
    let mut attempt = Attempt::new(at(0), TTL, 5);
    let _ = attempt.answer(at(1), 0, busy(&left_over, 100));
    let _ = attempt.answer(at(1), 1, busy(&one, 100));
    assert!(waits(&attempt.answer(at(1), 2, busy(&one, 100))), "two more may say the same");
    let step = attempt.answer(at(1), 3, busy(&one, 100));
    assert!(matches!(&step, Step::Lost(Verdict::Busy { holder, .. }) if holder.label() == Some("one:1")), "{step:?}");
}

#[test]
fn a_loss_without_a_majority_to_tell_who_holds_it_is_no_quorum() {
    let holder = Token::random("other:1");
    let mut attempt = Attempt::new(at(0), TTL, 3);
    let _ = attempt.answer(at(1), 0, Ok(Acquired::Recovering(TTL)));
    assert!(waits(&attempt.answer(at(1), 1, silence())), "the third may decide");
    let step = attempt.answer(at(1), 2, busy(&holder, 100));
    let Step::Lost(Verdict::Failed(said)) = step else { panic!("{step:?}") };
    assert!(matches!(&*said, [Ok(Acquired::Recovering(_)), Err(_), Ok(Acquired::Busy { .. })]), "{said:?}");
    assert_eq!(attempt.must_undo(), nodes(&[1]));
}

#[test]
fn the_tally_of_a_win_knows_who_denied() {
    let other = Token::random("other:1");
    let mut attempt = Attempt::new(at(5), TTL, 3);
    let _ = attempt.answer(at(6), 0, busy(&other, 100));
    let _ = attempt.answer(at(6), 1, granted(9));
    let Step::Won { mut tally, .. } = attempt.answer(at(6), 2, granted(9)) else { panic!() };
    assert_eq!(tally.confirmed(), at(5));
    tally.deny(1, at(7), Denial::Gone);
    assert_eq!(tally.denied(), Some(&Denial::Taken), "two of three");
}

#[test]
fn the_tally_of_a_win_knows_on_whom_it_may_be() {
    let mut attempt = Attempt::new(at(0), TTL, 7);
    let _ = attempt.answer(at(1), 0, silence());
    let _ = attempt.answer(at(1), 1, down());
    for node in 3..6 {
        let _ = attempt.answer(at(1), node, granted(9));
    }
    let Step::Won { tally, .. } = attempt.answer(at(1), 6, granted(9)) else { panic!() };
    // The third has not answered.
    assert_eq!(tally.may_hold(), [0, 2, 3, 4, 5, 6].into_iter().collect());
}

#[test]
fn one_of_several_nodes_is_waited_for_half_a_ttl_at_most() {
    let millis = Duration::from_millis;
    assert_eq!(limit(1, millis(700), millis(1_000)), millis(700), "the only one has the whole limit");
    assert_eq!(limit(3, millis(700), millis(1_000)), millis(500));
    assert_eq!(limit(3, millis(300), millis(1_000)), millis(300));
    assert_eq!(limit(3, millis(300), millis(10)), millis(20), "but never shorter than a link may take");
}

mod adoption {
    use super::*;

    #[allow(clippy::unnecessary_wraps, reason = "as above")]
    fn gone() -> Result<Acquired, Failure> {
        Ok(Acquired::Gone)
    }

    fn attempt(nodes: usize, answers: &[Result<Acquired, Failure>]) -> (Attempt, Step) {
        let mut attempt = Attempt::new(at(0), TTL, nodes);
        let mut last = Step::Wait;
        for (node, answer) in answers.iter().enumerate() {
            assert!(waits(&last), "it is decided before the answer of {node}: {last:?}");
            last = attempt.answer(at(1), node, answer.clone());
        }
        (attempt, last)
    }

    #[test]
    fn a_majority_that_has_the_key_is_enough_and_the_others_lack_it() {
        let (attempt, step) = attempt(3, &[gone(), granted(5), granted(5)]);
        let Step::Won { fence: won, tally } = step else { panic!("{step:?}") };
        assert_eq!((won, attempt.must_undo()), (fence(5), Nodes::NONE));
        assert_eq!(tally.denied(), None);
        assert!(tally.lacks(0), "it is brought back there");
    }

    #[test]
    fn what_is_gone_from_too_many_is_gone() {
        for (nodes, answers) in [
            (1, vec![gone()]),
            (3, vec![granted(5), gone(), gone()]),
            (3, vec![busy(&Token::random("other:1"), 100), gone(), gone()]),
        ] {
            let (attempt, step) = attempt(nodes, &answers);
            assert!(matches!(step, Step::Lost(Verdict::Gone)), "{answers:?}: {step:?}");
            let granted = answers.iter().position(|answer| matches!(answer, Ok(Acquired::Granted(_))));
            assert_eq!(attempt.must_undo(), granted.into_iter().collect(), "what was adopted is taken back");
        }
    }

    #[test]
    fn another_heir_that_has_as_much_is_no_loss_of_the_key() {
        for answers in [
            [gone(), granted(5), busy(&Token::random("other:1"), 100)],
            [gone(), down(), busy(&Token::random("other:1"), 100)],
        ] {
            let (_, step) = attempt(3, &answers);
            assert!(matches!(step, Step::Lost(Verdict::Split { .. })), "{answers:?}: {step:?}");
        }
    }

    #[test]
    fn somebody_with_a_majority_is_waited_for() {
        let heir = Token::random("other:1");
        let answers = [gone(), gone(), busy(&heir, 100), busy(&heir, 100), busy(&heir, 100)];
        let (_, step) = attempt(5, &answers);
        assert!(
            matches!(&step, Step::Lost(Verdict::Busy { holder, .. }) if holder.label() == Some("other:1")),
            "{step:?}"
        );
    }

    #[test]
    fn nodes_that_cannot_say_leave_room_for_another_attempt() {
        let (_, step) = attempt(3, &[gone(), silence(), down()]);
        assert!(matches!(step, Step::Lost(Verdict::Failed(_))), "{step:?}");
    }

    #[test]
    fn a_node_that_has_nothing_needs_no_undo() {
        assert!(!late(&gone()));
    }
}

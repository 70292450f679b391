//! Who leads, as an observer sees it: pure.
//!
//! # Invariants
//!
//! 1. The result of a look is known until `sent + remaining`, counted from when the look was sent, and no longer,
//!    whatever arrives or does not arrive. A holder's key cannot end before that. So this is the rule of a lease's own
//!    deadline, turned outward.
//! 2. Looks are made one after the other. A change that is notified during a look causes another look after it.
//! 3. The newest state is always reported. A renewal by its holder is not a new state.
//! 4. A look without an answer ends nothing: what is known expires by itself.

use std::time::Duration;

use crate::{
    backoff::{Backoff, LONGEST_PAUSE},
    holder::{Holder, RELEASED},
    jitter::Jitter,
    time::Time,
};

/// How long a look that found no holder counts, beside the time that a look may take. A new holder may come at any
/// time.
const VACANT_FOR: Duration = Duration::from_secs(2);

/// With less than this left, a look before the end is useless: the one right after it decides.
const SOON: Duration = Duration::from_millis(20);

/// The pause between looks at a key without a TTL, where changes are notified.
const SLOW_LOOK: Duration = Duration::from_secs(5);

/// Redis rounds a PTTL down, so the key may expire a millisecond later.
const ROUNDING: Duration = Duration::from_millis(1);

/// Who leads, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leadership {
    /// This holder leads until its [`remaining`](Holder::remaining) time has passed, unless it resigns before. That is
    /// the time of its key, which may outlive its term by a `lock_delay`; nobody else leads until then.
    Led(Holder),
    /// There is no leader: the name is [shared](Holder::is_shared), by readers or by holders of permits. This holder
    /// stands for all of them. A new one of them is reported only together with another change.
    Shared(Holder),
    /// There is no leader.
    Vacant,
    /// The leader is not known: what was known has expired, and the servers have not answered since, or too few of a
    /// quorum have. The same applies if the key is [not a lock](Holder::not_a_lock).
    Unknown,
}

impl Leadership {
    /// The leader, if it is known.
    #[must_use]
    pub fn leader(&self) -> Option<&Holder> {
        match self {
            Self::Led(leader) => Some(leader),
            Self::Shared(_) | Self::Vacant | Self::Unknown => None,
        }
    }

    /// Reads the result of a look. A key that was released, and stays for a while, has no leader any more; nor has a
    /// key that is not a lock.
    #[must_use]
    #[doc(hidden)]
    pub fn of(found: Option<Holder>) -> Self {
        match found {
            Some(holder) if holder.not_a_lock().is_some() => Self::Unknown,
            Some(holder) if holder.is_of_all() && holder.sharers() != Some(0) => Self::Shared(holder),
            Some(holder) if holder.is_of_all() => Self::Vacant,
            Some(holder) if !holder.label().is_some_and(|label| label.ends_with(RELEASED)) => Self::Led(holder),
            _ => Self::Vacant,
        }
    }

    /// Whether this state is no news after the other: the same leader, in the same term.
    #[must_use]
    #[doc(hidden)]
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Led(one), Self::Led(other)) | (Self::Shared(one), Self::Shared(other)) => {
                one.is_same(other) && one.fence() == other.fence()
            }
            _ => self == other,
        }
    }
}

/// `state`: `"led"`, `"shared"`, `"vacant"` or `"unknown"`, and `holder`: the leader or all sharers, else `null`.
#[cfg(feature = "serde")]
impl serde::Serialize for Leadership {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let (state, holder) = match self {
            Self::Led(holder) => ("led", Some(holder)),
            Self::Shared(holder) => ("shared", Some(holder)),
            Self::Vacant => ("vacant", None),
            Self::Unknown => ("unknown", None),
        };
        let mut leadership = serializer.serialize_struct("Leadership", 2)?;
        leadership.serialize_field("state", state)?;
        leadership.serialize_field("holder", &holder)?;
        leadership.end()
    }
}

/// What is known, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    what: Leadership,
    until: Time,
}

impl Known {
    /// Nothing is known.
    pub const NOTHING: Self = Self { what: Leadership::Unknown, until: Time::NEVER };

    /// Until when it counts.
    #[must_use]
    pub fn until(&self) -> Time {
        self.until
    }

    /// The part of it that still counts at this moment (invariant 1). A leader's remaining time is what is left of it
    /// by then.
    #[must_use]
    pub fn at(&self, now: Time) -> Leadership {
        match &self.what {
            _ if now >= self.until => Leadership::Unknown,
            what if self.until == Time::NEVER => what.clone(),
            Leadership::Led(leader) => Leadership::Led(leader.clone().lasting(Some(self.until.since(now)))),
            Leadership::Shared(all) => Leadership::Shared(all.clone().lasting(Some(self.until.since(now)))),
            what => what.clone(),
        }
    }
}

/// The observer of one lock.
#[derive(Debug)]
pub struct Observer {
    known: Known,
    next_look: Time,
    is_notified: bool,
    backoff: Backoff,
    /// The longest that a look takes.
    limit: Duration,
}

impl Observer {
    /// An observer that knows nothing yet, whose looks take at most `limit`.
    pub fn new(limit: Duration, jitter: Jitter) -> Self {
        Self { known: Known::NOTHING, next_look: Time::ZERO, is_notified: false, backoff: Backoff::new(jitter), limit }
    }

    /// What is known now.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// The lock may have changed.
    pub fn notified(&mut self) {
        self.is_notified = true;
    }

    /// Whether to look now.
    pub fn looks(&self, now: Time) -> bool {
        self.is_notified || now >= self.next_look
    }

    /// When the next step is due, unless a notification comes before.
    pub fn due(&self) -> Time {
        self.next_look.min(self.known.until)
    }

    /// A look begins. It will see everything that was notified so far.
    pub fn begins(&mut self) {
        self.is_notified = false;
    }

    /// The knowledge may have expired. Returns whether that is to be reported.
    pub fn expires(&mut self, now: Time) -> bool {
        now >= self.known.until && self.learns(Known::NOTHING)
    }

    /// A look that was sent at `sent` has found this holder, or none. With `is_notified` we are notified of the next
    /// change. Returns whether the result is to be reported.
    pub fn found(&mut self, sent: Time, now: Time, is_notified: bool, found: Option<Holder>) -> bool {
        let remaining = found.as_ref().map(Holder::remaining);
        let what = Leadership::of(found);
        let (until, next) = match (&what, remaining) {
            (Leadership::Vacant, _) => {
                let until = sent + VACANT_FOR + self.limit;
                (until, now + self.backoff.next(None))
            }
            (Leadership::Led(_) | Leadership::Shared(_), Some(Some(remaining))) => {
                let until = sent + remaining;
                let next = if is_notified { Duration::MAX } else { self.backoff.next(None) };
                // Half-way, since a notification may be lost. Near the end, only once the key has expired: the server
                // had executed the look by `now`. An earlier look would report a dead leader once more.
                let look = if remaining > SOON { sent + remaining / 2 } else { now + remaining + ROUNDING };
                (until, look.min(now + next))
            }
            // Without a leader nothing expires. A key without a TTL ends when it is deleted.
            _ => {
                let until = if what == Leadership::Unknown { Time::NEVER } else { sent + SLOW_LOOK * 2 + self.limit };
                (until, now + if is_notified { SLOW_LOOK } else { self.backoff.next(None) })
            }
        };
        if is_notified && matches!(what, Leadership::Led(_) | Leadership::Shared(_)) {
            self.backoff.starts_over();
        }
        self.next_look = next.max(now + ROUNDING);
        if until <= now {
            return self.learns(Known::NOTHING);
        }
        self.learns(Known { what, until })
    }

    /// A look has had no answer, or too few of them.
    pub fn found_nothing(&mut self, now: Time) -> bool {
        self.next_look = now + self.backoff.next(None);
        self.expires(now)
    }

    fn learns(&mut self, known: Known) -> bool {
        let is_news = !known.what.is_like(&self.known.what);
        self.known = known;
        is_news
    }
}

/// A vacancy expires soon unless another look confirms it. The next look begins before that, and has time to finish.
const _: () = assert!(LONGEST_PAUSE.as_millis() < VACANT_FOR.as_millis());

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{fence::Fence, token::Token};

    const LIMIT: Duration = Duration::from_millis(400);
    const SECOND: Duration = Duration::from_secs(1);

    fn observer() -> Observer {
        Observer::new(LIMIT, Jitter::from_seed(1))
    }

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn leader(token: &Token, fence: u64, remaining: Duration) -> Holder {
        Holder::of(Some(token.clone()), Some(remaining), Fence::try_from(fence).ok())
    }

    #[test]
    fn what_was_seen_counts_until_its_own_end_and_from_the_sending_of_the_look() {
        let (mut observer, token) = (observer(), Token::random("one"));
        assert!(observer.looks(at(0)) && observer.known().at(at(0)) == Leadership::Unknown);
        observer.begins();
        assert!(observer.found(at(10), at(250), true, Some(leader(&token, 7, SECOND))));
        let Leadership::Led(holder) = observer.known().at(at(310)) else { panic!("it is led") };
        assert_eq!(holder.remaining(), Some(Duration::from_millis(700)), "from the sending");
        assert_eq!(observer.due(), at(510), "half way: a notification may be lost");
        assert!(!observer.found_nothing(at(900)), "it is known still");
        assert!(matches!(observer.known().at(at(1_009)), Leadership::Led(_)));
        assert_eq!(observer.known().at(at(1_010)), Leadership::Unknown, "whoever told nobody");
        assert!(observer.expires(at(1_010)) && !observer.expires(at(1_010)), "told once");
        assert!(observer.found(at(1_020), at(1_030), true, None));
        assert_eq!(observer.known().at(at(1_030)), Leadership::Vacant);
        assert!(observer.expires(at(3_420)), "a vacancy that nobody has looked at again");
    }

    #[test]
    fn the_look_after_the_end_is_made_when_the_key_has_gone() {
        let (mut observer, token) = (observer(), Token::random("one"));
        assert!(observer.found(at(10), at(16), true, Some(leader(&token, 7, Duration::from_millis(9)))));
        assert!(observer.expires(at(19)), "it counts from the sending");
        // The server had executed the look by 16, and the key expires 9 ms after that.
        assert!(!observer.looks(at(25)) && observer.looks(at(26)));
    }

    #[test]
    fn an_answer_that_comes_after_its_own_end_says_nothing() {
        let (mut observer, token) = (observer(), Token::random("one"));
        assert!(!observer.found(at(0), at(1_000), true, Some(leader(&token, 7, SECOND))));
        assert_eq!(observer.known().at(at(1_000)), Leadership::Unknown);
        assert!(observer.due() <= at(1_001), "it looks again");
    }

    #[test]
    fn a_new_term_is_told_and_a_renewal_is_not() {
        let (mut observer, one, two) = (observer(), Token::random("one"), Token::random("two"));
        assert!(observer.found(at(0), at(1), true, Some(leader(&one, 7, SECOND))));
        assert!(!observer.found(at(300), at(301), true, Some(leader(&one, 7, SECOND))));
        assert_eq!(observer.due(), at(800), "it counts for longer all the same");
        assert!(observer.found(at(400), at(401), true, Some(leader(&two, 8, SECOND))));
        assert!(
            observer.found(at(500), at(501), true, Some(leader(&two, 3, SECOND))),
            "a fence that falls is told as it is"
        );
        assert!(observer.found(at(600), at(601), true, None) && !observer.found(at(700), at(701), true, None));
    }

    #[test]
    fn a_key_that_is_released_or_no_lock_has_no_leader() {
        let mut observer = observer();
        let released = Token::random(&format!("one{RELEASED}"));
        assert!(observer.found(at(0), at(1), true, Some(leader(&released, 7, SECOND))));
        assert_eq!(observer.known().at(at(1)), Leadership::Vacant);
        assert!(observer.found(at(2), at(3), true, Some(Holder::of_type(Some("list"), -1))));
        assert_eq!(observer.known().at(at(3)), Leadership::Unknown);
        assert_eq!(observer.due(), at(3) + SLOW_LOOK);
    }

    #[test]
    fn a_name_that_is_shared_has_no_leader() {
        let mut observer = observer();
        let all = |sharers, fence: u64| {
            let value = format!("lh1:00000000-0000-0000-0000-000000000000:{fence}@");
            Some(Holder::read(Some(&value), 1_000).shared_by(sharers))
        };
        assert!(observer.found(at(0), at(1), true, all(2, 7)));
        let known = observer.known().at(at(300));
        let Leadership::Shared(holder) = &known else { panic!("{known:?}") };
        assert_eq!((holder.sharers(), holder.remaining()), (Some(2), Some(Duration::from_millis(700))));
        assert_eq!(known.leader(), None);
        assert_eq!(observer.due(), at(500), "half way, as of a leader");
        assert!(!observer.found(at(400), at(401), true, all(3, 7)), "one more who shares it is no news");
        assert!(observer.found(at(500), at(501), true, all(1, 8)), "another phase is");
        assert_eq!(observer.known().at(at(1_500)), Leadership::Unknown);
        assert!(observer.found(at(600), at(601), true, all(0, 8)));
        assert_eq!(observer.known().at(at(601)), Leadership::Vacant);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_writes_the_state_and_its_holder() {
        let json = |now: &Leadership| serde_json::to_string(now).unwrap();
        assert_eq!(json(&Leadership::Vacant), r#"{"state":"vacant","holder":null}"#);
        assert_eq!(json(&Leadership::Unknown), r#"{"state":"unknown","holder":null}"#);
        let holder = leader(&Token::random("one"), 7, SECOND);
        let of_it = serde_json::to_string(&holder).unwrap();
        assert_eq!(json(&Leadership::Led(holder.clone())), format!(r#"{{"state":"led","holder":{of_it}}}"#));
        assert_eq!(json(&Leadership::Shared(holder)), format!(r#"{{"state":"shared","holder":{of_it}}}"#));
    }

    #[test]
    fn a_leader_whose_key_has_no_ttl_is_not_named_for_ever_either() {
        let mut observer = observer();
        let holder = Holder::of(Some(Token::random("one")), None, None);
        assert!(observer.found(at(0), at(1), true, Some(holder)));
        assert!(observer.due() <= at(1) + SLOW_LOOK);
        assert_eq!(observer.known().at(at(20_000)), Leadership::Unknown);
    }

    #[test]
    fn a_change_during_a_look_has_another_one_follow() {
        let (mut observer, one) = (observer(), Token::random("one"));
        observer.begins();
        observer.notified();
        observer.found(at(0), at(1), true, Some(leader(&one, 7, SECOND)));
        assert!(observer.looks(at(1)));
        observer.begins();
        assert!(!observer.looks(at(1)));
    }

    proptest! {
        /// Invariant 1, with random looks: no leader is reported beyond `sent + remaining` of a look.
        #[test]
        fn nothing_counts_for_longer_than_a_look_allows(
            looks in proptest::collection::vec((0_u64..900, 0_u64..50, 0_u64..700, any::<bool>(), 0_u8..4), 1..40)
        ) {
            let (mut observer, token, mut now, mut most) = (observer(), Token::random("one"), at(0), at(0));
            for (pause, took, remaining, is_notified, kind) in looks {
                now = now + Duration::from_millis(pause);
                observer.expires(now);
                let sent = now;
                now = now + Duration::from_millis(took);
                match kind {
                    0 => drop(observer.found_nothing(now)),
                    1 => drop(observer.found(sent, now, is_notified, None)),
                    _ => {
                        let remaining = Duration::from_millis(remaining);
                        most = most.max(sent + remaining);
                        observer.found(sent, now, is_notified, Some(leader(&token, 7, remaining)));
                    }
                }
                prop_assert!(observer.known().at(most).leader().is_none());
                prop_assert!(observer.due() > now, "no loop without a pause");
                let later = observer.known().at(now);
                prop_assert!(later.leader().is_none_or(|leader| leader.remaining().unwrap_or_default() <= most.since(now)));
            }
        }
    }
}

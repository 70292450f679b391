//! Who holds a lock on how many nodes: pure.

use crate::{fence::Fence, holder::Holder};

/// The holder of the most nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Camp {
    pub(crate) holder: Holder,
    pub(crate) nodes: usize,
    /// Whether the fence is the holder's for certain.
    pub(crate) is_settled: bool,
}

impl Camp {
    /// Of what the nodes say that are held. Programs that write no tokens of ours look all alike.
    ///
    /// A majority was raised to the holder's fence at least, and a majority drew that at most (rule 10): where all are
    /// heard it is the one in the middle. Of a few it is the smallest: some drew more too late to count, and those that
    /// drew less are raised soon.
    pub(crate) fn largest(held: &[Holder], majority: usize) -> Option<Self> {
        let like = |one: &Holder| held.iter().filter(|other| other.token == one.token).count();
        let most = held.iter().max_by_key(|holder| like(holder))?;
        let fences = || held.iter().filter(|other| other.token == most.token).filter_map(|holder| holder.fence);
        let at_least = |fence: Fence| fences().filter(|&other| other >= fence).count() >= majority;
        let at_most = |fence: Fence| fences().filter(|&other| other <= fence).count() >= majority;
        let middle = fences().find(|&fence| at_least(fence) && at_most(fence));
        let fence = middle.or_else(|| fences().min());
        let holder = Holder { fence, ..most.clone() };
        Some(Self { holder, nodes: like(most), is_settled: middle == fence })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Token;

    fn held(token: Option<&Token>, fence: u64) -> Holder {
        Holder { token: token.cloned(), remaining: None, fence: Fence::try_from(fence).ok() }
    }

    #[test]
    fn most_nodes_make_the_holder() {
        let (one, two) = (Token::draw("one:1"), Token::draw("two:2"));
        assert_eq!(Camp::largest(&[], 2), None);
        let camp = Camp::largest(
            &[held(Some(&two), 90), held(Some(&one), 3), held(None, 99), held(Some(&one), 9), held(Some(&one), 3)],
            3,
        );
        assert_eq!(camp.map(|camp| (camp.holder, camp.nodes)), Some((held(Some(&one), 3), 3)));
        let foreign = Camp::largest(&[held(None, 1), held(Some(&one), 3), held(None, 2)], 3);
        assert_eq!(foreign.map(|camp| (camp.holder.token, camp.nodes)), Some((None, 2)));
    }

    #[test]
    fn the_middle_fence_is_the_holders_or_else_the_smallest() {
        let one = Token::draw("one:1");
        let fence = |fences: &[u64]| {
            let held: Vec<Holder> = fences.iter().map(|&fence| held(Some(&one), fence)).collect();
            let camp = Camp::largest(&held, 2).unwrap();
            (camp.holder.fence.map(u64::from), camp.is_settled)
        };
        assert_eq!(fence(&[9, 4]), (Some(4), false), "the third decides");
        assert_eq!(fence(&[9, 4, 4]), (Some(4), true), "one drew more, too late");
        assert_eq!(fence(&[9, 2, 9]), (Some(9), true), "a raise has not reached one");
        assert_eq!(fence(&[2, 9, 4]), (Some(4), true), "both");
        assert_eq!(fence(&[7, 7]), (Some(7), true), "whatever the third says");
    }
}

//! Who holds a lock on how many nodes: pure.

use crate::{fence::Fence, holder::Holder};

/// The holder of the most nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Camp {
    /// With the middle one of the fences that its nodes name: see [`is_settled`](Self::is_settled).
    pub(crate) holder: Holder,
    pub(crate) nodes: usize,
    /// So many of its nodes name at least that fence, and so many at most that.
    backing: usize,
}

impl Camp {
    /// Of what the nodes say that are held. Programs that write no tokens of ours look all alike.
    pub(crate) fn largest(held: &[Holder]) -> Option<Self> {
        let like = |one: &Holder| held.iter().filter(|other| other.token == one.token).count();
        let most = held.iter().max_by_key(|holder| like(holder))?;
        let mut fences: Vec<Fence> =
            held.iter().filter(|other| other.token == most.token).filter_map(|holder| holder.fence).collect();
        fences.sort_unstable();
        let fence = fences.get(fences.len().saturating_sub(1) / 2).copied();
        let at_least = fences.iter().filter(|&&other| Some(other) >= fence).count();
        let at_most = fences.iter().filter(|&&other| Some(other) <= fence).count();
        let holder = Holder { fence, ..most.clone() };
        Some(Self { holder, nodes: like(most), backing: at_least.min(at_most) })
    }

    /// Whether the fence is the holder's for certain: a majority was raised to that at least, and a majority drew that
    /// at most (rule 10). The others drew more, or a raise has not reached them.
    pub(crate) fn is_settled(&self, majority: usize) -> bool {
        self.holder.fence.is_none() || self.backing >= majority
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
        assert_eq!(Camp::largest(&[]), None);
        let camp = Camp::largest(&[
            held(Some(&two), 90),
            held(Some(&one), 3),
            held(None, 99),
            held(Some(&one), 9),
            held(Some(&one), 3),
        ]);
        assert_eq!(camp.map(|camp| (camp.holder, camp.nodes)), Some((held(Some(&one), 3), 3)));
        let foreign = Camp::largest(&[held(None, 1), held(Some(&one), 3), held(None, 2)]);
        assert_eq!(foreign.map(|camp| (camp.holder.token, camp.nodes)), Some((None, 2)));
    }

    #[test]
    fn the_middle_fence_is_the_holders() {
        let one = Token::draw("one:1");
        let fence = |fences: &[u64]| {
            let held: Vec<Holder> = fences.iter().map(|&fence| held(Some(&one), fence)).collect();
            let camp = Camp::largest(&held).unwrap();
            (camp.holder.fence.map(u64::from), camp.is_settled(2))
        };
        assert_eq!(fence(&[9, 4]), (Some(4), false), "the third decides");
        assert_eq!(fence(&[9, 4, 4]), (Some(4), true), "one drew more, too late");
        assert_eq!(fence(&[9, 2, 9]), (Some(9), true), "a raise has not reached one");
        assert_eq!(fence(&[2, 9, 4]), (Some(4), true), "both");
        assert_eq!(fence(&[7, 7]), (Some(7), true), "whatever the third says");
    }
}

//! Who holds a lock on how many nodes: pure.

use std::cmp::Reverse;

use crate::{fence::Fence, holder::Holder};

/// The holder of the most nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Camp {
    /// With the fence that most of its nodes name, or the smallest of those: a node that granted when the fence was settled
    /// may have drawn a larger one, and keeps it, while one that drew a smaller one is raised.
    pub(crate) holder: Holder,
    pub(crate) nodes: usize,
}

impl Camp {
    /// Of what the nodes say that are held. Programs that write no tokens of ours look all alike.
    pub(crate) fn largest(held: &[Holder]) -> Option<Self> {
        let like = |one: &Holder| held.iter().filter(|other| other.token == one.token).count();
        let most = held.iter().max_by_key(|holder| like(holder))?;
        let fences: Vec<Fence> =
            held.iter().filter(|other| other.token == most.token).filter_map(|holder| holder.fence).collect();
        let named = |fence: Fence| fences.iter().filter(|&&other| other == fence).count();
        let fence = fences.iter().copied().max_by_key(|&fence| (named(fence), Reverse(fence)));
        Some(Self { holder: Holder { fence, ..most.clone() }, nodes: like(most) })
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
    fn most_nodes_make_the_holder_and_most_of_those_its_fence() {
        let (one, two) = (Token::draw("one:1"), Token::draw("two:2"));
        assert_eq!(Camp::largest(&[]), None);
        let camp = Camp::largest(&[
            held(Some(&two), 90),
            held(Some(&one), 3),
            held(None, 99),
            held(Some(&one), 9),
            held(Some(&one), 3),
        ]);
        assert_eq!(camp, Some(Camp { holder: held(Some(&one), 3), nodes: 3 }));
        let one_drew_more = Camp::largest(&[held(Some(&one), 9), held(Some(&one), 3)]);
        assert_eq!(one_drew_more, Some(Camp { holder: held(Some(&one), 3), nodes: 2 }));
        let foreign = Camp::largest(&[held(None, 1), held(Some(&one), 3), held(None, 2)]);
        assert_eq!(foreign.map(|camp| (camp.holder.token, camp.nodes)), Some((None, 2)));
    }
}

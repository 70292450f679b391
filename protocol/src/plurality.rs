//! The holder of a lock on the most nodes: pure.

use crate::{fence::Fence, holder::Holder};

/// The holder on the most nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plurality {
    /// The holder, with its fence if that is certain: a majority was raised to at least that, and a majority issued at
    /// most that (rule 10). Of the others, some issued more, too late, and some were not reached by the raise.
    pub holder: Holder,
    /// On how many nodes it holds the lock.
    pub nodes: usize,
}

impl Plurality {
    /// The plurality of these holders. Programs that do not write our tokens all look alike.
    pub fn largest(held: &[Holder], majority: usize) -> Option<Self> {
        let like = |one: &Holder| held.iter().filter(|other| other.token == one.token).count();
        let most = held.iter().max_by_key(|holder| like(holder))?;
        let mut fences: Vec<Fence> =
            held.iter().filter(|other| other.token == most.token).filter_map(|holder| holder.fence).collect();
        fences.sort_unstable();
        let at_least = |fence: Fence| fences.iter().filter(|&&other| other >= fence).count();
        let at_most = |fence: Fence| fences.iter().filter(|&&other| other <= fence).count();
        let is_certain = |fence: &Fence| at_least(*fence) >= majority && at_most(*fence) >= majority;
        let fence = fences.iter().copied().find(is_certain);
        Some(Self { holder: Holder { fence, ..most.clone() }, nodes: like(most) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Token;

    fn held(token: Option<&Token>, fence: u64) -> Holder {
        Holder::of(token.cloned(), None, Fence::try_from(fence).ok())
    }

    #[test]
    fn most_nodes_make_the_holder() {
        let (one, two) = (Token::random("one:1"), Token::random("two:2"));
        assert_eq!(Plurality::largest(&[], 3), None);
        let mut nodes = vec![held(Some(&two), 90), held(Some(&one), 3), held(Some(&one), 9), held(Some(&one), 3)];
        let camp = Plurality::largest(&nodes, 3).unwrap();
        assert_eq!((camp.holder.token(), camp.holder.fence, camp.nodes), (Some(one.identity()), None, 3));
        nodes.push(held(Some(&one), 3));
        assert_eq!(Plurality::largest(&nodes, 3), Some(Plurality { holder: held(Some(&one), 3), nodes: 4 }));
        let foreign = Plurality::largest(&[held(None, 1), held(Some(&one), 3), held(None, 2)], 2);
        assert_eq!(foreign.map(|camp| (camp.holder.token, camp.nodes)), Some((None, 2)));
    }

    #[test]
    fn its_fence_is_told_once_it_is_certain() {
        let one = Token::random("one:1");
        let fence = |fences: &[u64]| {
            let held: Vec<Holder> = fences.iter().map(|&fence| held(Some(&one), fence)).collect();
            Plurality::largest(&held, 2).unwrap().holder.fence.map(u64::from)
        };
        assert_eq!(fence(&[9, 4]), None, "the third decides");
        assert_eq!(fence(&[9, 4, 4]), Some(4), "one drew more, too late");
        assert_eq!(fence(&[9, 2, 9]), Some(9), "a raise has not reached one");
        assert_eq!(fence(&[2, 9, 4]), Some(4), "both");
        assert_eq!(fence(&[7, 7]), Some(7), "whatever the third says");
    }
}

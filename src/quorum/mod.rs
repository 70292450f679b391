//! What the nodes say together. One node is a quorum of one: the arithmetic is the same.

pub(crate) mod tally;

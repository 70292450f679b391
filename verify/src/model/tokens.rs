//! The tokens of all attempts.

use leasehold_protocol::{fence, key::Key, message::Claim, mode::Mode, token::Token};
use uuid::Uuid;

use super::{TTL, state::Owner};

#[derive(Debug, Clone)]
pub(super) struct Tokens(Vec<Vec<Token>>);

impl Tokens {
    /// The tokens of `clients` clients, with `attempts` attempts each.
    pub(super) fn new(clients: u64, attempts: u64) -> Self {
        let token = |client: u64, number: u64| {
            let uuid = Uuid::from_u64_pair(client, number);
            Token::parse(&format!("lh1:{uuid}@client-{client}.{number}")).unwrap()
        };
        Self((0..clients).map(|client| (0..attempts).map(|number| token(client, number)).collect()).collect())
    }

    pub(super) fn of(&self, (client, number): Owner) -> &Token {
        &self.0[usize::from(client)][usize::from(number)]
    }

    /// The claim of an owner to have a lock alone.
    pub(super) fn claim(&self, key: &Key, owner: Owner) -> Claim {
        let (key, token) = (key.clone(), self.of(owner).clone());
        Claim { key, token, mode: Mode::Exclusive, ttl: TTL, life: TTL, fence: None, fence_memory: fence::MEMORY }
    }

    /// The owner of a token.
    pub(super) fn owner(&self, token: &Token) -> Option<Owner> {
        (0_u8..).zip(&self.0).find_map(|(client, tokens)| {
            let number = tokens.iter().position(|other| other.clone().taking(token.permits()) == *token)?;
            Some((client, u8::try_from(number).ok()?))
        })
    }
}

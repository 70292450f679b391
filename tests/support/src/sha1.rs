//! SHA-1, which names a cached script.
//!
//! A server would have to be up to be asked for the digest, and `SCRIPT LOAD` would fill the very cache that a test may
//! want empty.

use std::fmt::Write;

/// The lower-case hexadecimal digest that `EVALSHA` takes.
pub fn sha1_hex(text: &str) -> String {
    let mut state: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    let mut message = text.as_bytes().to_vec();
    let bits = 8 * message.len() as u64;
    message.push(0x80);
    message.resize(message.len().next_multiple_of(64), 0);
    if message.len() - text.len() < 9 {
        message.resize(message.len() + 64, 0);
    }
    let tail = message.len() - 8;
    message[tail..].copy_from_slice(&bits.to_be_bytes());

    for block in message.chunks_exact(64) {
        let sum = compress(state, block);
        for (word, new) in state.iter_mut().zip(sum) {
            *word = word.wrapping_add(new);
        }
    }
    state.iter().fold(String::new(), |mut hex, word| {
        write!(hex, "{word:08x}").expect("a String takes any text");
        hex
    })
}

#[allow(clippy::many_single_char_names)] // the names in the standard
fn compress(state: [u32; 5], block: &[u8]) -> [u32; 5] {
    let mut schedule = [0_u32; 80];
    for (word, bytes) in schedule.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    }
    for i in 16..80 {
        schedule[i] = (schedule[i - 3] ^ schedule[i - 8] ^ schedule[i - 14] ^ schedule[i - 16]).rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = state;
    for (round, word) in schedule.into_iter().enumerate() {
        let (mix, constant) = match round {
            0..20 => ((b & c) | (!b & d), 0x5a82_7999),
            20..40 => (b ^ c ^ d, 0x6ed9_eba1),
            40..60 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
            _ => (b ^ c ^ d, 0xca62_c1d6_u32),
        };
        let next = a.rotate_left(5).wrapping_add(mix).wrapping_add(e).wrapping_add(constant).wrapping_add(word);
        (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
    }
    [a, b, c, d, e]
}

//! The weight of the requests of a link, for as long as fred holds them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use fred::{bytes::Bytes, types::Value};

use crate::node::redis::script::Text;

/// The approximate memory that fred needs for a request besides its bytes.
const EACH: usize = 1024;

/// The first argument of a request. fred drops it with the request, and so tells when it no longer holds that.
pub(super) struct Weighed {
    text: Text,
    weight: usize,
    load: Arc<AtomicUsize>,
}

impl Weighed {
    pub(super) fn argument(text: Text, rest: &[Value], load: &Arc<AtomicUsize>) -> Bytes {
        let bytes: usize = rest.iter().map(|value| value.as_bytes().map_or(0, <[u8]>::len)).sum();
        let weight = EACH + text.as_ref().len() + bytes;
        load.fetch_add(weight, Ordering::Relaxed);
        Bytes::from_owner(Self { text, weight, load: load.clone() })
    }
}

impl AsRef<[u8]> for Weighed {
    fn as_ref(&self) -> &[u8] {
        self.text.as_ref().as_bytes()
    }
}

impl Drop for Weighed {
    fn drop(&mut self) {
        self.load.fetch_sub(self.weight, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_weighs_until_fred_drops_it() {
        let load = Arc::new(AtomicUsize::new(0));
        let rest = vec![Value::from("four"), Value::from(7_i64)];
        let argument = Weighed::argument(Text::Fixed("EVAL"), &rest, &load);
        let copy = argument.clone();
        assert_eq!((&*argument, load.load(Ordering::Relaxed)), (&b"EVAL"[..], EACH + 8));
        drop(argument);
        assert_eq!(load.load(Ordering::Relaxed), EACH + 8, "a pipeline has copies");
        drop(copy);
        assert_eq!(load.load(Ordering::Relaxed), 0);
    }
}

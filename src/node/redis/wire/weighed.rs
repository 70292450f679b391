//! The weight of the requests of a link, for as long as fred holds them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use fred::{bytes::Bytes, types::Value};

/// The approximate memory that fred needs for a request besides the request's bytes.
const EACH: usize = 1024;

/// A text that fred drops with its request; the drop shows that fred no longer holds the request.
struct Weighed<T> {
    text: T,
    weight: usize,
    load: Arc<AtomicUsize>,
}

/// The first argument of a request, with its weight.
pub(super) fn argument(text: impl AsRef<str> + Send + 'static, rest: &[Value], load: &Arc<AtomicUsize>) -> Bytes {
    let bytes: usize = rest.iter().map(|value| value.as_bytes().map_or(0, <[u8]>::len)).sum();
    let weight = EACH + text.as_ref().len() + bytes;
    load.fetch_add(weight, Ordering::Relaxed);
    Bytes::from_owner(Weighed { text, weight, load: load.clone() })
}

impl<T: AsRef<str>> AsRef<[u8]> for Weighed<T> {
    fn as_ref(&self) -> &[u8] {
        self.text.as_ref().as_bytes()
    }
}

impl<T> Drop for Weighed<T> {
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
        let argument = argument("EVAL", &rest, &load);
        let copy = argument.clone();
        assert_eq!((&*argument, load.load(Ordering::Relaxed)), (&b"EVAL"[..], EACH + 8));
        drop(argument);
        assert_eq!(load.load(Ordering::Relaxed), EACH + 8, "a pipeline has copies");
        drop(copy);
        assert_eq!(load.load(Ordering::Relaxed), 0);
    }
}

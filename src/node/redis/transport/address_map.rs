//! Where to reach servers announced at other addresses: behind address translation, forwarded ports or containers.

use leasehold_protocol::topology::Place;

use crate::error::Error;

/// The addresses that differ from the announced ones. The first match counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AddressMap(Vec<(Part, Part)>);

/// An address, or all ports of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    host: String,
    port: Option<u16>,
}

impl AddressMap {
    /// Adds an entry: a server announced as `from` is reached at `to`; each is `host:port` or `host`.
    pub(crate) fn add(&mut self, from: &str, to: &str) -> Result<(), Error> {
        let wrong = |text: &str, why: &str| Error::config(format!("address_map: {text:?} {why}"));
        let read = |text: &str| Part::read(text).ok_or_else(|| wrong(text, "is neither host:port nor host"));
        let (from_part, to_part) = (read(from)?, read(to)?);
        if from_part.port.is_none() && to_part.port.is_some() {
            return Err(wrong(from, "has no port, and what it leads to has one: all its servers would be one"));
        }
        self.0.push((from_part, to_part));
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The address at which this place is reached.
    pub(crate) fn reach(&self, place: &Place) -> Place {
        let fits = |part: &Part| {
            part.host.eq_ignore_ascii_case(&place.host) && part.port.is_none_or(|port| port == place.port)
        };
        match self.0.iter().find(|(from, _)| fits(from)) {
            Some((_, to)) => Place { host: to.host.as_str().into(), port: to.port.unwrap_or(place.port) },
            None => place.clone(),
        }
    }
}

impl Part {
    /// An IPv6 address has brackets if a port follows.
    fn read(text: &str) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port.parse().ok()?)),
            _ => (text, None),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_host = !host.contains(':') || host.parse::<std::net::Ipv6Addr>().is_ok();
        let is_host =
            is_host && !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@[]?#,=".contains(c));
        (is_host && port != Some(0)).then(|| Self { host: host.into(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str, port: u16) -> Place {
        Place { host: host.into(), port }
    }

    #[test]
    fn the_first_that_fits_counts_and_what_is_not_named_stays() {
        let mut map = AddressMap::default();
        for (from, to) in
            [("10.0.0.1:7000", "localhost:1"), ("10.0.0.1", "two"), ("::1", "::2"), ("[fe80::1]:5", "[::3]:6")]
        {
            map.add(from, to).unwrap();
        }
        for (from, to) in [
            (place("10.0.0.1", 7_000), place("localhost", 1)),
            (place("10.0.0.1", 7_001), place("two", 7_001)),
            (place("::1", 9), place("::2", 9)),
            (place("fe80::1", 5), place("::3", 6)),
            (place("fe80::1", 6), place("fe80::1", 6)),
        ] {
            assert_eq!(map.reach(&from), to);
        }
    }

    #[test]
    fn what_is_no_address_is_named() {
        for (from, to) in [
            ("", "a"),
            ("a", ""),
            ("a:0", "b:1"),
            ("a:x", "b"),
            ("a:1", "b/c"),
            ("a b", "c"),
            ("a=b", "c"),
            ("[::1]x", "c"),
            ("a:1:2", "c"),
        ] {
            let error = AddressMap::default().add(from, to).unwrap_err().to_string();
            assert!(
                error.contains("address_map") && error.contains("neither host:port nor host"),
                "{from} {to}: {error}"
            );
        }
        let error = AddressMap::default().add("a", "b:1").unwrap_err().to_string();
        assert!(error.contains("would be one"), "{error}");
    }
}

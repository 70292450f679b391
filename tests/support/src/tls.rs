//! A certificate authority for one server's life, and a certificate from it.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};

/// File names inside the directory of a server.
pub(crate) const CA: &str = "ca.pem";
/// The server's certificate.
pub(crate) const CERTIFICATE: &str = "server.pem";
/// The server's private key.
pub(crate) const KEY: &str = "server.key";

/// Writes a new authority's certificate, and a certificate and key for
/// `localhost` and 127.0.0.1, into `directory`.
pub(crate) fn write_certificates(directory: &Path) {
    // An authority apart from the server's certificate: verifiers refuse a
    // certificate that is an authority and the end of the chain at once.
    let ca_key = KeyPair::generate().expect("a key for the test authority");
    let mut ca = CertificateParams::new(Vec::new()).expect("parameters of the test authority");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, "leasehold test authority");
    let ca = ca.self_signed(&ca_key).expect("the test authority");

    let key = KeyPair::generate().expect("a key for the test server");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names)
        .expect("parameters of the test certificate")
        .signed_by(&key, &ca, &ca_key)
        .expect("the test certificate");

    for (name, text) in [(CA, ca.pem()), (CERTIFICATE, certificate.pem()), (KEY, key.serialize_pem())] {
        std::fs::write(directory.join(name), text).unwrap_or_else(|error| panic!("{name} cannot be written: {error}"));
    }
}

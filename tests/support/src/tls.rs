//! A certificate authority for one server's life, and a certificate from it.

use std::path::{Path, PathBuf};

use super::temp_dir::TempDir;
use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, KeyPair, date_time_ymd};

/// The authority's certificate, as a file name in a server's directory.
pub(crate) const CA: &str = "ca.pem";
/// The server's certificate.
pub(crate) const CERTIFICATE: &str = "server.pem";
/// The server's private key.
pub(crate) const KEY: &str = "server.key";

/// A client's certificate and key, accepted by the server.
pub(crate) const CLIENT: [&str; 2] = ["client.pem", "client.key"];
/// An expired certificate and key from the server's authority.
pub(crate) const EXPIRED: [&str; 2] = ["expired.pem", "expired.key"];

/// An authority, with one certificate and key for all servers of a test that use TLS among each other.
#[derive(Debug)]
pub struct Authority(TempDir);

impl Authority {
    /// An authority whose certificate is for these names and addresses.
    pub fn new(names: &[&str]) -> Self {
        let directory = TempDir::new("tls");
        write_certificates(directory.path(), names);
        Self(directory)
    }

    /// The certificate that a client has to trust.
    pub fn ca_pem_path(&self) -> PathBuf {
        self.0.path().join(CA)
    }

    pub(crate) fn certificate_and_key(&self) -> [PathBuf; 2] {
        [CERTIFICATE, KEY].map(|name| self.0.path().join(name))
    }
}

/// The default names in a server's certificate.
pub(crate) const LOCAL: [&str; 2] = ["localhost", "127.0.0.1"];

/// Writes a new authority's certificate, and certificates and keys from it
/// into `directory`: for a server with these names, and for clients.
pub(crate) fn write_certificates(directory: &Path, names: &[&str]) {
    // The authority is separate from the server's certificate: verifiers refuse a certificate that is both an authority
    // and the end of the chain.
    let ca_key = KeyPair::generate().expect("a key for the test authority");
    let mut ca = CertificateParams::new(Vec::new()).expect("parameters of the test authority");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Each authority has a different name.
    ca.distinguished_name.push(DnType::CommonName, format!("authority of {}", directory.display()));
    let ca = ca.self_signed(&ca_key).expect("the test authority");

    let key = KeyPair::generate().expect("a key for the test server");
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = CertificateParams::new(names)
        .expect("parameters of the test certificate")
        .signed_by(&key, &ca, &ca_key)
        .expect("the test certificate");

    for (name, text) in [(CA, ca.pem()), (CERTIFICATE, certificate.pem()), (KEY, key.serialize_pem())] {
        write(directory, name, &text);
    }
    write_client(directory, CLIENT, (&ca, &ca_key), false);
    write_client(directory, EXPIRED, (&ca, &ca_key), true);
}

fn write_client(directory: &Path, names: [&str; 2], (ca, ca_key): (&Certificate, &KeyPair), has_expired: bool) {
    let key = KeyPair::generate().expect("a key for a test client");
    let mut certificate = CertificateParams::new(Vec::new()).expect("parameters of a client's certificate");
    certificate.distinguished_name.push(DnType::CommonName, "leasehold test client");
    if has_expired {
        certificate.not_after = date_time_ymd(2001, 1, 1);
    }
    let certificate = certificate.signed_by(&key, ca, ca_key).expect("a client's certificate");
    write(directory, names[0], &certificate.pem());
    write(directory, names[1], &key.serialize_pem());
}

fn write(directory: &Path, name: &str, text: &str) {
    std::fs::write(directory.join(name), text).unwrap_or_else(|error| panic!("{name} cannot be written: {error}"));
}

//! `rediss://`, where a TLS library was built in.

use fred::types::config::Config;

use crate::error::Error;

/// A file that the environment names is meant to be read.
#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
fn check_environment() -> Result<(), Error> {
    let Some(path) = std::env::var_os("SSL_CERT_FILE") else { return Ok(()) };
    std::fs::read(&path).map(drop).map_err(|error| {
        let path = std::path::Path::new(&path).display();
        Error::config(format!(
            "SSL_CERT_FILE names {path}, which cannot be read ({error}): name a PEM file, or unset it"
        ))
    })
}

/// rustls with the ring provider named outright: which provider is the process's default depends on what else the
/// program links.
#[cfg(feature = "tls-rustls")]
pub(crate) fn enable(config: &mut Config) -> Result<(), Error> {
    use std::sync::Arc;

    use fred::{
        rustls::{ClientConfig, RootCertStore, crypto::ring},
        rustls_native_certs::load_native_certs,
        types::config::TlsConnector,
    };

    check_environment()?;
    let found = load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _unusable) = roots.add_parsable_certificates(found.certs);
    if usable == 0 {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(Error::config(format!(
            "rediss:// needs root certificates, and this machine has none{why}: install them, or name a PEM file in \
             SSL_CERT_FILE"
        )));
    }
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::config(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.tls = Some(TlsConnector::from(tls).into());
    Ok(())
}

#[cfg(all(feature = "tls-native", not(feature = "tls-rustls")))]
pub(crate) fn enable(config: &mut Config) -> Result<(), Error> {
    use fred::types::config::TlsConnector;

    check_environment()?;
    let connector = TlsConnector::default_native_tls()
        .map_err(|error| Error::config(format!("TLS cannot be set up: {}", error.details())))?;
    config.tls = Some(connector.into());
    Ok(())
}

#[cfg(not(any(feature = "tls-rustls", feature = "tls-native")))]
pub(crate) fn enable(_config: &mut Config) -> Result<(), Error> {
    Err(Error::config(
        "rediss:// needs TLS, which this build leaves out: enable the crate feature tls-rustls or tls-native",
    ))
}

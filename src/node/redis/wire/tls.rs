//! TLS connections, if the build includes a TLS library.

use fred::types::config::Config;

use crate::tls::Tls;

/// Fails early if `SSL_CERT_FILE` names a file that cannot be read.
#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
fn check_environment() -> Result<(), String> {
    let Some(path) = std::env::var_os("SSL_CERT_FILE") else { return Ok(()) };
    std::fs::read(&path).map(drop).map_err(|error| {
        let path = std::path::Path::new(&path).display();
        format!("SSL_CERT_FILE names {path}, which cannot be read ({error}): name a PEM file, or unset it")
    })
}

/// Sets the name that the certificate must have, if that is not the host.
#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
fn name_the_server(config: &mut Config, tls: &Tls) {
    use fred::types::config::ServerConfig;

    if let (ServerConfig::Centralized { server }, Some(name)) = (&mut config.server, &tls.server_name) {
        server.tls_server_name = Some(name.as_str().into());
    }
}

#[cfg(feature = "tls-rustls")]
pub(crate) fn enable(config: &mut Config, tls: &Tls) -> Result<(), String> {
    name_the_server(config, tls);
    config.tls = Some(fred::types::config::TlsConnector::from(with_rustls::client(tls)?).into());
    Ok(())
}

#[cfg(feature = "tls-rustls")]
mod with_rustls {
    use std::sync::Arc;

    use fred::{
        rustls::{
            ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
            client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
            crypto::{self, CryptoProvider, ring},
            pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
        },
        rustls_native_certs::load_native_certs,
    };

    use super::check_environment;
    use crate::tls::{Pem, Tls};

    /// The provider is named explicitly: the process's default depends on what else the program links.
    pub(super) fn client(tls: &Tls) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS cannot be set up: {error}"))?;
        let builder = if tls.accepts_any {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        } else {
            builder.with_root_certificates(roots(tls)?)
        };
        let Some((certificate, key)) = &tls.client else { return Ok(builder.with_no_client_auth()) };
        let private = PrivateKeyDer::from_pem_slice(&key.read()?)
            .map_err(|error| format!("{key} has no private key ({error}): it must be PEM, and have no passphrase"))?;
        builder.with_client_auth_cert(certificates(certificate)?, private).map_err(|error| {
            format!("{certificate} does not go with its key ({error}): name the key that it was made for")
        })
    }

    fn roots(tls: &Tls) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        if let Some(authorities) = &tls.authorities {
            for certificate in certificates(authorities)? {
                roots.add(certificate).map_err(|error| {
                    format!("{authorities} has a certificate that cannot be used ({error}): replace it")
                })?;
            }
            return Ok(roots);
        }
        check_environment()?;
        let found = load_native_certs();
        let (usable, _unusable) = roots.add_parsable_certificates(found.certs);
        if usable == 0 {
            let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
            return Err(format!(
                "rediss:// needs root certificates, and this machine has none{why}: install them, or name a PEM file in \
                 SSL_CERT_FILE"
            ));
        }
        Ok(roots)
    }

    fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, String> {
        let text = pem.read()?;
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match all {
            Ok(all) if !all.is_empty() => Ok(all),
            Ok(_) => Err(format!("{pem} has no certificate: it must be PEM, -----BEGIN CERTIFICATE-----")),
            Err(error) => Err(format!("{pem} is no PEM ({error}): name a file with certificates in PEM")),
        }
    }

    /// Accepts any server that holds the key of the certificate it presents.
    #[derive(Debug)]
    struct Anybody(Arc<CryptoProvider>);

    impl ServerCertVerifier for Anybody {
        fn verify_server_cert(
            &self,
            _server: &CertificateDer<'_>,
            _between: &[CertificateDer<'_>],
            _name: &ServerName<'_>,
            _ocsp: &[u8],
            _now: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            crypto::verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            crypto::verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }
}

#[cfg(all(feature = "tls-native", not(feature = "tls-rustls")))]
pub(crate) fn enable(config: &mut Config, tls: &Tls) -> Result<(), String> {
    use fred::{
        native_tls::{Certificate, Identity, TlsConnector as Native},
        types::config::TlsConnector,
    };

    name_the_server(config, tls);
    let mut builder = Native::builder();
    if let Some(authorities) = &tls.authorities {
        let all = Certificate::stack_from_pem(&authorities.read()?);
        let all =
            all.map_err(|error| format!("{authorities} is no PEM ({error}): name a file with certificates in PEM"))?;
        if all.is_empty() {
            return Err(format!("{authorities} has no certificate: it must be PEM, -----BEGIN CERTIFICATE-----"));
        }
        builder.disable_built_in_roots(true);
        for certificate in all {
            builder.add_root_certificate(certificate);
        }
    } else if tls.accepts_any {
        builder.danger_accept_invalid_certs(true).danger_accept_invalid_hostnames(true);
    } else {
        check_environment()?;
    }
    if let Some((certificate, key)) = &tls.client {
        let identity = Identity::from_pkcs8(&certificate.read()?, &key.read()?);
        builder.identity(identity.map_err(|error| {
            format!("{certificate} and {key} are no certificate and its PKCS #8 key ({error}): see that they are PEM")
        })?);
    }
    let connector = TlsConnector::try_from(builder).map_err(|error| match &tls.client {
        // OpenSSL's text.
        Some((certificate, _)) if error.details().contains("key values mismatch") => {
            format!("{certificate} does not go with its key: name the key that it was made for")
        }
        _ => format!("TLS cannot be set up: {}", error.details()),
    })?;
    config.tls = Some(connector.into());
    Ok(())
}

#[cfg(not(any(feature = "tls-rustls", feature = "tls-native")))]
pub(crate) fn enable(_config: &mut Config, _tls: &Tls) -> Result<(), String> {
    Err("this build leaves TLS out, which rediss:// needs: enable the crate feature tls-rustls or tls-native".into())
}

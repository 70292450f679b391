//! Certificate errors between us and a server, with advice on what to do.

use crate::{node::redis::wire::Error as WireError, tls::Tls};

/// The beginnings of the texts that are appended to the server's address.
const NOT_TRUSTED: &str = "is not trusted: ";
const TURNED_AWAY: &str = "has turned us away: ";

/// An error of a handshake, in our words; any other as it is.
pub(super) fn explained(error: WireError, tls: &Tls) -> WireError {
    let details = error.details();
    let text = untrusted(details, tls).map(|why| format!("{NOT_TRUSTED}{why}"));
    match text.or_else(|| Some(format!("{TURNED_AWAY}{}", turned_away(details)?))) {
        Some(text) => WireError::new(error.kind, text),
        None => error,
    }
}

/// Whether it is from [`explained`]: trying again does not change it.
pub(super) fn is_explained(details: &str) -> bool {
    details.starts_with(NOT_TRUSTED) || details.starts_with(TURNED_AWAY)
}

/// Why the server's certificate is not accepted, in the words of rustls or of OpenSSL, and what to do about it.
fn untrusted(details: &str, tls: &Tls) -> Option<String> {
    let says = |any: &[&str]| any.iter().any(|words| details.contains(words));
    if !says(&["InvalidCertificate", "certificate verify failed"]) {
        return None;
    }
    Some(
        if says(&["UnknownIssuer", "BadSignature", "self-signed", "self signed", "local issuer"]) {
            let file = std::env::var("SSL_CERT_FILE").ok();
            return Some(of_stranger(tls.authorities.as_ref().map(ToString::to_string), file.as_deref()));
        } else if says(&["NotValidForName", "ostname mismatch", "address mismatch"]) {
            "its certificate is for another name; connect to a name that the certificate has, or give that as server_name (tls_name in the url of a cluster or of Sentinels)"
        } else if says(&["NotValidYet", "not yet valid"]) {
            "its certificate is not valid yet; is this machine's clock right?"
        } else if says(&["Expired", "expired"]) {
            "its certificate has expired; renew it"
        } else {
            "its certificate cannot be used; replace it"
        }
        .to_owned(),
    )
}

/// The text for an authority that was not named, or that is not in the named file.
fn of_stranger(setting: Option<String>, file: Option<&str>) -> String {
    match (setting, file) {
        (Some(setting), _) => {
            format!("the authority of its certificate is not in {setting}; put that authority's certificate there")
        }
        (None, None) => {
            "this machine does not know the authority of its certificate; put that authority's certificate into a PEM \
                         file, and name the file as ca_file, or in SSL_CERT_FILE"
                .to_owned()
        }
        (None, Some(file)) => format!(
            "the authority of its certificate is not in {file}, which SSL_CERT_FILE names; put that authority's certificate \
             into this file"
        ),
    }
}

/// Why the server does not accept us: its alert, in the words of rustls or of OpenSSL.
fn turned_away(details: &str) -> Option<&'static str> {
    let says = |any: &[&str]| any.iter().any(|words| details.contains(words));
    if !says(&["AlertReceived", "fatal alert", " alert "]) {
        return None;
    }
    Some(if says(&["CertificateRequired", "certificate required"]) {
        "it wants a certificate of ours; give one and its key (client_cert_files)"
    } else if says(&["UnknownCA", "UnknownCa", "unknown ca"]) {
        "it does not know the authority of our certificate; give one that its tls-ca-cert-file knows"
    } else if says(&["CertificateExpired", "certificate expired"]) {
        "our certificate has expired; renew it"
    } else if says(&["ertificate", "DecryptError", "decrypt error"]) {
        "it does not take our certificate; replace it"
    } else {
        return None;
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::node::redis::{
        transport::{
            RequiredKind,
            failure::{classify, is_refusal},
        },
        wire::ErrorKind,
    };

    fn says(details: String, tls: &Tls) -> String {
        let error = explained(WireError::new(ErrorKind::Other, details), tls);
        let failure = classify(("h:1", RequiredKind::Alone), &error, Duration::from_secs(1));
        assert!(failure.is_refusal() && is_refusal(&error), "{failure}");
        failure.to_string()
    }

    #[test]
    fn a_file_of_authorities_that_lacks_the_servers_is_named() {
        assert!(
            of_stranger(None, Some("/etc/ours.pem")).contains("is not in /etc/ours.pem, which SSL_CERT_FILE names")
        );
        assert!(of_stranger(None, None).ends_with("name the file as ca_file, or in SSL_CERT_FILE"));
        let tls = Tls::new().ca_file("/etc/theirs.pem");
        let said = says("certificate verify failed: (self-signed certificate)".into(), &tls);
        assert!(said.contains("h:1 is not trusted") && said.contains("not in ca_file /etc/theirs.pem"), "{said}");
    }

    #[test]
    fn a_certificate_that_does_not_do_is_refused_with_what_to_do() {
        let invalid = |what: &str| format!("Custom {{ kind: InvalidData, error: InvalidCertificate({what}) }}");
        let alert = |what: &str| format!("Custom {{ kind: InvalidData, error: AlertReceived({what}) }}");
        for (details, what) in [
            (invalid("UnknownIssuer"), "SSL_CERT_FILE"),
            (invalid("NotValidForNameContext { expected: DnsName(\"h\"), presented: [] }"), "another name"),
            (invalid("ExpiredContext { time: 1, not_after: 0 }"), "renew it"),
            (invalid("NotValidYetContext { time: 1, not_before: 2 }"), "clock"),
            (invalid("BadEncoding"), "replace it"),
            ("certificate verify failed: (self-signed certificate)".into(), "SSL_CERT_FILE"),
            (alert("CertificateRequired"), "give one and its key"),
            (alert("UnknownCA"), "authority of our certificate"),
            (alert("CertificateExpired"), "our certificate has expired"),
            (alert("BadCertificate"), "does not take our certificate"),
            (
                "error:0A00045C:SSL routines:ssl3_read_bytes:tlsv13 alert certificate required".into(),
                "give one and its key",
            ),
        ] {
            let said = says(details, &Tls::new());
            assert!(said.contains(what), "{said}");
        }
    }

    #[test]
    fn what_is_no_matter_of_trust_stays_as_it_is() {
        for details in ["Connection reset by peer", "AlertReceived(InternalError)"] {
            let error = explained(WireError::new(ErrorKind::Other, details), &Tls::new());
            assert!(error.details() == details && !is_explained(details));
        }
    }
}

//! Who sends a request over the network: whom a certificate names, a bearer token's owner, or nobody in particular.

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::client_certificates::Shown;
use crate::headers::text;
use crate::identity::Identity;
use crate::registry::Registry;
use crate::status::{Result, Status};
use crate::tokens::{ISSUER, Tokens};

/// The user of a request without credentials.
fn anonymous() -> Identity {
    Identity {
        user: "system:anonymous".to_owned(),
        groups: vec!["system:unauthenticated".to_owned()],
        ..Identity::default()
    }
}

/// Who the client's certificate names, or else the owner of the request's bearer token. A wrong certificate or token is
/// refused unless the other one is right; neither, or another scheme, makes the user anonymous.
pub(crate) fn authenticate(
    shown: Shown,
    headers: &HeaderMap,
    tokens: &Tokens,
    registry: &Registry,
) -> Result<Identity> {
    let wrong = match shown {
        Shown::Nothing => false,
        Shown::User { identity, until } if registry.clock.now() <= until => return Ok(identity),
        Shown::Wrong | Shown::User { .. } => true,
    };
    match bearer(&text(headers, AUTHORIZATION)) {
        Bearer::Nothing | Bearer::AfterSpace if wrong => Err(Status::unauthorized()),
        Bearer::Nothing | Bearer::AfterSpace => Ok(anonymous()),
        Bearer::Token(token) => {
            let owner =
                tokens.authenticate(token, &[ISSUER], registry).map_err(|_| Status::unauthorized())?;
            Ok(owner.identity)
        }
    }
}

/// What the client should know about its credentials, whatever else is answered.
pub(crate) fn warning(headers: &HeaderMap) -> Option<&'static str> {
    (bearer(&text(headers, AUTHORIZATION)) == Bearer::AfterSpace).then_some(
        "the provided Authorization header contains extra space before the bearer token, and is ignored",
    )
}

/// The token of an `Authorization` header.
#[derive(Debug, PartialEq, Eq)]
enum Bearer<'a> {
    Nothing,
    Token(&'a str),
    /// One that does not count (upstream: `invalidTokenWithSpaceWarning`).
    AfterSpace,
}

/// Upstream: `k8s.io/apiserver/pkg/authentication/request/bearertoken`.
fn bearer(given: &str) -> Bearer<'_> {
    let mut parts = given.trim().splitn(3, ' ');
    if !parts.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case("bearer")) {
        return Bearer::Nothing;
    }
    match (parts.next(), parts.next()) {
        (Some(""), Some(_)) => Bearer::AfterSpace,
        (None | Some(""), _) => Bearer::Nothing,
        (Some(token), _) => Bearer::Token(token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_what_stands_between_two_spaces() {
        for (given, expected) in [
            ("", Bearer::Nothing),
            ("Bearer", Bearer::Nothing),
            ("Bearer ", Bearer::Nothing),
            ("Basic abc", Bearer::Nothing),
            ("Bearer abc", Bearer::Token("abc")),
            (" bEaReR abc def ", Bearer::Token("abc")),
            ("Bearer é", Bearer::Token("é")),
            ("Bearer  abc", Bearer::AfterSpace),
        ] {
            assert_eq!(bearer(given), expected, "{given:?}");
        }
    }
}

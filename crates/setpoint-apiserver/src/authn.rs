//! Who sends a request over the network: whom a certificate names, a bearer token's owner, or nobody in particular.

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::client_certificates::Shown;
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
    let given = headers.get(AUTHORIZATION).and_then(|given| given.to_str().ok()).unwrap_or_default();
    let token = given
        .trim()
        .split_once(' ')
        .and_then(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer").then_some(token.trim()));
    match token {
        None | Some("") if wrong => Err(Status::unauthorized()),
        None | Some("") => Ok(anonymous()),
        Some(token) => {
            let owner =
                tokens.authenticate(token, &[ISSUER], registry).map_err(|_| Status::unauthorized())?;
            Ok(owner.identity)
        }
    }
}

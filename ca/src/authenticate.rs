//! Who asks: the bearer token of a request.

use culvert_token::{Caller, ReviewError, TokenReviewer};
use tonic::metadata::MetadataMap;

/// The audience that a token must be issued for.
pub const AUDIENCE: &str = "culvert-ca";

/// Why a caller is not known.
#[derive(Debug, thiserror::Error)]
pub enum AuthenticateError {
    /// There is no bearer token.
    #[error("request carries no bearer token")]
    NoToken,
    /// The token was refused.
    #[error("token was refused")]
    Refused(#[source] ReviewError),
}

impl AuthenticateError {
    /// The error as a metric label: a closed set.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoToken => "no_token",
            Self::Refused(error) => error.reason(),
        }
    }
}

/// Says who sent a request with this metadata.
///
/// # Errors
/// When there is no token or it was refused.
pub async fn authenticate(
    reviewer: &dyn TokenReviewer,
    metadata: &MetadataMap,
) -> Result<Caller, AuthenticateError> {
    let token = bearer(metadata).ok_or(AuthenticateError::NoToken)?;
    reviewer
        .review(token, AUDIENCE)
        .await
        .map_err(AuthenticateError::Refused)
}

/// RFC 6750 and RFC 9110: the scheme is case-insensitive.
fn bearer(metadata: &MetadataMap) -> Option<&str> {
    let value = metadata.get("authorization")?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_follows_the_scheme() {
        for (value, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer ", None),
            ("Bearer", None),
            ("Basic abc", None),
            ("", None),
        ] {
            let mut metadata = MetadataMap::new();
            metadata.insert("authorization", value.parse().unwrap());
            assert_eq!(bearer(&metadata), expected, "{value:?}");
        }
        assert_eq!(bearer(&MetadataMap::new()), None);
    }
}

//! Our service account's token: a file that the kubelet replaces, so that it is read
//! again for every use.

use std::io;
use std::path::{Path, PathBuf};

use tonic::metadata::{Ascii, MetadataValue};

/// A token file.
#[derive(Debug, Clone)]
pub struct TokenFile {
    path: PathBuf,
}

/// The token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token file {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is empty, or holds what no token can.
    #[error("token file {path} holds no token")]
    Unusable {
        /// The file.
        path: PathBuf,
    },
}

impl TokenFile {
    /// The token at a path; the file may appear later.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
        }
    }

    /// The token as it is now.
    ///
    /// # Errors
    /// When the file cannot be read or is empty.
    pub fn read(&self) -> Result<String, TokenError> {
        let text = std::fs::read_to_string(&self.path).map_err(|source| TokenError::Read {
            path: self.path.clone(),
            source,
        })?;
        let token = text.trim();
        let plain = !token.is_empty() && token.chars().all(|c| c.is_ascii_graphic());
        if plain {
            Ok(token.to_owned())
        } else {
            Err(self.unusable())
        }
    }

    /// The token as the value of an `authorization` header.
    ///
    /// # Errors
    /// As [`TokenFile::read`].
    pub fn bearer(&self) -> Result<MetadataValue<Ascii>, TokenError> {
        let text = format!("Bearer {}", self.read()?);
        let mut value = MetadataValue::try_from(text).map_err(|_| self.unusable())?;
        value.set_sensitive(true);
        Ok(value)
    }

    fn unusable(&self) -> TokenError {
        TokenError::Unusable {
            path: self.path.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_every_time() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("token");
        let file = TokenFile::new(&path);
        assert!(matches!(file.read(), Err(TokenError::Read { .. })));
        std::fs::write(&path, "\n").expect("write");
        assert!(matches!(file.bearer(), Err(TokenError::Unusable { .. })));
        std::fs::write(&path, "a b").expect("write");
        assert!(matches!(file.bearer(), Err(TokenError::Unusable { .. })));
        std::fs::write(&path, "one\n").expect("write");
        assert_eq!(file.read().expect("token"), "one");
        std::fs::write(&path, "two").expect("write");
        let bearer = file.bearer().expect("token");
        assert_eq!(bearer.to_str().expect("text"), "Bearer two");
        assert!(!format!("{bearer:?}").contains("two"));
    }
}

//! Tokens of the mesh's programs: the API server's part. The key lives as long as
//! the engine, its public half is published for CA and discovery.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use culvert_token::{Bound, IssuerError, TokenIssuer, TokenRequest};

use crate::engine::object::uid;
use crate::engine::scheduler::node_key;
use crate::engine::world::{Store, write_whole};
use crate::state::StateDir;

/// Lifetime of a token: Kubernetes' own for projected tokens.
const LIFETIME: Duration = Duration::from_secs(3600);
/// When tokens are renewed: with as much time left for a failed try.
const RENEW: Duration = Duration::from_secs(1800);
/// After a failed try.
const RETRY: Duration = Duration::from_secs(10);
/// Namespace of the mesh's programs.
const NAMESPACE: &str = "culvert-system";

/// A token cannot be made or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// It cannot be made.
    #[error("cannot issue tokens")]
    Issue(#[from] IssuerError),
    /// It cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// Issues the tokens of all programs.
#[derive(Debug)]
pub(crate) struct Tokens {
    issuer: TokenIssuer,
    state: StateDir,
    store: Store,
    nodes: Vec<String>,
}

impl Tokens {
    /// Makes a key, publishes it, and writes the first tokens.
    pub(crate) fn start(
        state: StateDir,
        store: Store,
        nodes: Vec<String>,
    ) -> Result<Self, TokenError> {
        let issuer = TokenIssuer::generate()?;
        issuer.write_jwks(&state.path("jwks.json"))?;
        let tokens = Self {
            issuer,
            state,
            store,
            nodes,
        };
        tokens.write_all()?;
        Ok(tokens)
    }

    /// Renews them for good.
    pub(crate) async fn run(self) {
        loop {
            tokio::time::sleep(RENEW).await;
            while let Err(error) = self.write_all() {
                tracing::error!(error = culvert_runtime::chain(&error), "renew tokens");
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    fn write_all(&self) -> Result<(), TokenError> {
        self.write(
            &self.state.path("tokens/discovery.ca.token"),
            ("culvert-discovery", "culvert-ca"),
            None,
        )?;
        for node in &self.nodes {
            let object = self.store.object(&node_key(node));
            let uid = object
                .map(|object| uid(&object).to_owned())
                .unwrap_or_default();
            let bound = Bound {
                name: node.clone(),
                uid,
            };
            let directory = self.state.node(node).join("tokens");
            for audience in ["culvert-ca", "culvert-discovery"] {
                let file = directory.join(audience.replace("culvert-", "") + ".token");
                self.write(&file, ("culvert-node-proxy", audience), Some(&bound))?;
            }
        }
        Ok(())
    }

    fn write(
        &self,
        path: &Path,
        (account, audience): (&str, &str),
        node: Option<&Bound>,
    ) -> Result<(), TokenError> {
        let request = TokenRequest {
            namespace: NAMESPACE,
            service_account: account,
            pod: None,
            node,
            audience,
            lifetime: LIFETIME,
        };
        let token = self.issuer.issue(&request, SystemTime::now())?;
        write_whole(path, token.as_bytes()).map_err(|source| TokenError::Write {
            path: path.to_owned(),
            source,
        })
    }
}

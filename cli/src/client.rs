//! Talks to the engine over its Unix socket.

use std::path::PathBuf;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;

use crate::engine::api::{Overview, Scale};
use crate::state::StateDir;

/// Time for one answer: the engine answers from memory.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer: all pods of the largest cluster, with room.
const BODY_BYTES_MAX: usize = 256 << 20;

/// The engine did not answer as hoped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// Nobody is there.
    #[error("mesh {mesh} is not up (no engine at {socket}); start it with `culvert up DIR`")]
    NotUp {
        /// Name of the mesh.
        mesh: String,
        /// Its socket.
        socket: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The exchange broke.
    #[error("the engine did not answer")]
    Exchange(#[from] hyper::Error),
    /// The request is malformed.
    #[error("malformed request")]
    Request(#[from] http::Error),
    /// The answer is no JSON of the expected shape.
    #[error("the engine answered something unexpected")]
    Answer(#[from] serde_json::Error),
    /// The answer is too long or broke off.
    #[error("cannot read the engine's answer: {0}")]
    Body(String),
    /// The engine refused.
    #[error("{0}")]
    Refused(String),
    /// Time is over.
    #[error("the engine did not answer within {} s", TIMEOUT.as_secs())]
    Timeout,
}

/// The engine of a mesh.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    state: StateDir,
}

impl Client {
    /// The engine of this mesh.
    pub(crate) fn new(state: &StateDir) -> Self {
        Self {
            state: state.clone(),
        }
    }

    /// The state of everything.
    pub(crate) async fn overview(&self) -> Result<Overview, ClientError> {
        self.ask(Method::GET, "/status", None).await
    }

    /// All objects of a kind.
    pub(crate) async fn objects(
        &self,
        kind: &str,
        namespace: Option<&str>,
    ) -> Result<Vec<Value>, ClientError> {
        let namespace = namespace
            .map(|one| format!("&namespace={one}"))
            .unwrap_or_default();
        self.ask(
            Method::GET,
            &format!("/objects?kind={kind}{namespace}"),
            None,
        )
        .await
    }

    /// Kinds of which there is an object.
    pub(crate) async fn kinds(&self) -> Result<Vec<String>, ClientError> {
        self.ask(Method::GET, "/kinds", None).await
    }

    /// Deletes an object.
    pub(crate) async fn delete(
        &self,
        (kind, namespace, name): (&str, &str, &str),
        grace: Option<u64>,
    ) -> Result<Value, ClientError> {
        let namespace = if namespace.is_empty() { "_" } else { namespace };
        let grace = grace
            .map(|seconds| format!("?grace={seconds}"))
            .unwrap_or_default();
        self.ask(
            Method::DELETE,
            &format!("/objects/{kind}/{namespace}/{name}{grace}"),
            None,
        )
        .await
    }

    /// Changes the number of replicas.
    pub(crate) async fn scale(&self, scale: &Scale) -> Result<Value, ClientError> {
        let body = serde_json::to_vec(scale)?;
        self.ask(Method::POST, "/scale", Some(body)).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<T, ClientError> {
        let (status, body) = tokio::time::timeout(TIMEOUT, self.exchange(method, path, body))
            .await
            .unwrap_or(Err(ClientError::Timeout))?;
        if status.is_success() {
            return Ok(serde_json::from_slice(&body)?);
        }
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let said = answer
            .get("error")
            .and_then(Value::as_str)
            .map(str::to_owned);
        Err(ClientError::Refused(
            said.unwrap_or_else(|| format!("the engine answered {status}")),
        ))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let socket = self.state.socket();
        let stream = UnixStream::connect(&socket)
            .await
            .map_err(|source| ClientError::NotUp {
                mesh: self.state.mesh().to_owned(),
                socket,
                source,
            })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "engine")
            .header("connection", "close")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))?;
        let exchange = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), BODY_BYTES_MAX)
                .collect()
                .await
                .map_err(|error| ClientError::Body(error.to_string()))?;
            Ok((status, body.to_bytes()))
        };
        tokio::pin!(exchange, connection);
        tokio::select! {
            result = &mut exchange => result,
            ended = &mut connection => {
                ended?;
                exchange.await
            }
        }
    }
}

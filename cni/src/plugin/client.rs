//! One HTTP request over the agent's Unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::UnixStream;

use crate::wire::Reply;

/// The agent answers with a sentence.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The agent could not be asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// Nobody listens.
    #[error("cannot connect to {path}")]
    Unreachable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    #[error("the conversation broke off")]
    Http(#[source] hyper::Error),
    #[error("the answer is not readable: {0}")]
    Answer(String),
    #[error("cannot start")]
    Runtime(#[source] io::Error),
}

pub(super) fn ask<T: Serialize>(
    socket: &Path,
    path: &str,
    request: &T,
    wait: Duration,
) -> Result<Reply, ClientError> {
    let body =
        serde_json::to_vec(request).map_err(|error| ClientError::Answer(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ClientError::Runtime)?;
    runtime.block_on(async {
        tokio::time::timeout(wait, exchange(socket, path, body))
            .await
            .unwrap_or(Err(ClientError::Deadline(wait)))
    })
}

async fn exchange(socket: &Path, path: &str, body: Vec<u8>) -> Result<Reply, ClientError> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|source| ClientError::Unreachable {
            path: socket.to_owned(),
            source,
        })?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(ClientError::Http)?;
    let request = http::Request::post(path)
        .header(http::header::HOST, "culvert-cni")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| ClientError::Answer(error.to_string()))?;
    let answer = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(ClientError::Http)?;
        let limited = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
        let bytes = limited
            .collect()
            .await
            .map_err(|error| ClientError::Answer(error.to_string()))?
            .to_bytes();
        serde_json::from_slice(&bytes).map_err(|error| ClientError::Answer(error.to_string()))
    };
    tokio::pin!(answer);
    // The connection does the reading and writing; it ends when the answer is there.
    tokio::select! {
        answer = &mut answer => answer,
        ended = connection => {
            ended.map_err(ClientError::Http)?;
            answer.await
        }
    }
}

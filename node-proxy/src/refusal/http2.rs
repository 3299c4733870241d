//! Refusal of a client that speaks HTTP/2: every stream is answered on its own.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Request, Response, StatusCode};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::Refusal;

/// A client that opens streams for longer than this gets a RST.
const LIMIT: Duration = Duration::from_secs(5);
/// Streams that are answered before the connection is told to end.
const STREAMS_MAX: usize = 100;

const REASON: HeaderName = HeaderName::from_static("x-culvert-reason");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The client did not let itself be answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("the client broke HTTP/2")]
    Http2(#[source] h2::Error),
    #[error("the client did not end in time")]
    TimedOut,
}

pub(super) async fn answer(socket: &mut TcpStream, refusal: &Refusal) -> Result<(), AnswerError> {
    let deadline = Instant::now() + LIMIT;
    let serving = async {
        let mut connection = h2::server::handshake(socket)
            .await
            .map_err(AnswerError::Http2)?;
        let mut streams = 0;
        while let Some(next) = connection.accept().await {
            let (request, mut respond) = next.map_err(AnswerError::Http2)?;
            let (response, body) = response(&request, refusal);
            let ended = body.is_empty();
            let sent = respond.send_response(response, ended);
            if let Ok(mut stream) = sent
                && !ended
            {
                let _ = stream.send_data(body, true);
            }
            streams += 1;
            if streams == 1 || streams >= STREAMS_MAX {
                // What the client has asked already is answered, then it ends.
                connection.graceful_shutdown();
            }
        }
        Ok(())
    };
    timeout_at(deadline, serving)
        .await
        .unwrap_or(Err(AnswerError::TimedOut))
}

fn response<B>(request: &Request<B>, refusal: &Refusal) -> (Response<()>, Bytes) {
    let mut response = Response::new(());
    let grpc = request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    response.headers_mut().insert(REASON, refusal.header());
    if grpc {
        // Trailers only: the status of the call is in the head.
        let status = HeaderValue::from_static(refusal.category.grpc_status());
        let text = refusal.text();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, status);
        if let Ok(text) = HeaderValue::try_from(text.trim_end()) {
            headers.insert(GRPC_MESSAGE, text);
        }
        *response.status_mut() = StatusCode::OK;
        return (response, Bytes::new());
    }
    *response.status_mut() = refusal.category.status();
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    (response, Bytes::from(refusal.text()))
}

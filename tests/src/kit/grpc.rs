//! A gRPC bidirectional stream: each side speaks before the other is done.

use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::{Stream, StreamExt};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

mod messages {
    #![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
    tonic::include_proto!("culvert.tests");
}

use messages::Line;
use messages::chat_client::ChatClient;
use messages::chat_server::{Chat, ChatServer};

struct Reverse;

#[tonic::async_trait]
impl Chat for Reverse {
    type TalkStream = Pin<Box<dyn Stream<Item = Result<Line, Status>> + Send>>;

    async fn talk(
        &self,
        request: Request<Streaming<Line>>,
    ) -> Result<Response<Self::TalkStream>, Status> {
        let answers = request
            .into_inner()
            .map(|line| line.map(|line| reversed(&line)));
        Ok(Response::new(Box::pin(answers)))
    }
}

fn reversed(line: &Line) -> Line {
    Line {
        number: line.number,
        text: line.text.chars().rev().collect(),
    }
}

/// Serves the stream.
///
/// # Errors
/// When the port is taken.
pub async fn serve(port: u16) -> Result<()> {
    let listener = super::socket::listen(port)?;
    listener.set_nonblocking(true).context("nonblocking")?;
    let listener = tokio::net::TcpListener::from_std(listener).context("listener")?;
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    Server::builder()
        .add_service(ChatServer::new(Reverse))
        .serve_with_incoming(incoming)
        .await
        .context("serve")
}

/// Sends `count` lines, each only after the answer to the one before, and checks
/// every answer.
///
/// # Errors
/// When an answer is missing or wrong.
pub async fn check(target: &str, count: u32, limit: Duration) -> Result<()> {
    let whole = async {
        let channel = Endpoint::from_shared(format!("http://{target}"))
            .context("address")?
            .connect()
            .await
            .context("connect")?;
        let (send, receive) = tokio::sync::mpsc::channel(1);
        let outgoing = tokio_stream::wrappers::ReceiverStream::new(receive);
        let mut answers = ChatClient::new(channel)
            .talk(outgoing)
            .await
            .context("open the stream")?
            .into_inner();
        for number in 0..count {
            let text = format!("line {number} {}", "x".repeat(number as usize % 4000));
            send.send(Line {
                number,
                text: text.clone(),
            })
            .await
            .context("send")?;
            let answer = answers
                .message()
                .await
                .context("answer")?
                .context("stream ended")?;
            let expected = reversed(&Line { number, text });
            ensure!(answer == expected, "answer {number} differs");
        }
        drop(send);
        ensure!(
            answers.message().await.context("end")?.is_none(),
            "more answers than lines"
        );
        Ok(())
    };
    tokio::time::timeout(limit, whole)
        .await
        .context("the stream took too long")?
}

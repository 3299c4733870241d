//! Keeps duplicates of the listening sockets of each pod, so that connections wait
//! in them while no node proxy runs.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use culvert_api::proto::keeper::{self, request::Payload};
use culvert_netns::{
    AsyncSeqPacket, AsyncSeqPacketListener, FDS_MAX, Packet, SeqPacketError, SeqPacketListener,
};
use culvert_runtime::{ConnectionTracker, DrainWatch, chain};
use prost::Message as _;
use tokio::time::timeout;

use crate::packet::PACKET_BYTES_MAX;
use crate::state::Uid;

/// A client asks one or two things and goes.
const IDLE: Duration = Duration::from_secs(30);
const SEND_DEADLINE: Duration = Duration::from_secs(5);
/// Proxies ask for one pod at a time.
const CONNECTIONS_MAX: usize = 64;

/// The kept sockets. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Keeper {
    // Held for one map operation, never across an await.
    pods: Arc<Mutex<HashMap<Uid, Kept>>>,
}

#[derive(Debug, Default)]
struct Kept {
    sockets: Vec<(keeper::Socket, Arc<OwnedFd>)>,
}

impl Keeper {
    /// Takes sockets of this pod from now on.
    pub fn allow(&self, uid: &Uid) {
        self.lock().entry(Arc::clone(uid)).or_default();
    }

    /// Closes the sockets of this pod and takes no more.
    pub fn drop_pod(&self, uid: &str) {
        let kept = self.lock().remove(uid);
        drop(kept);
    }

    /// How many sockets are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().values().map(|kept| kept.sockets.len()).sum()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Uid, Kept>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one request; the descriptors of the answer go along.
    fn answer(&self, packet: Packet) -> (keeper::Answer, Vec<Arc<OwnedFd>>) {
        let refused = |error: String| {
            let answer = keeper::Answer {
                error,
                ..keeper::Answer::default()
            };
            (answer, Vec::new())
        };
        let request = match keeper::Request::decode(&*packet.bytes) {
            Ok(request) => request,
            Err(error) => return refused(format!("not a request: {error}")),
        };
        match request.payload {
            Some(Payload::Put(put)) => match self.put(put, packet.fds) {
                Ok(()) => (done(Vec::new()), Vec::new()),
                Err(error) => refused(error),
            },
            Some(Payload::Take(take)) => {
                let pods = self.lock();
                let kept = pods.get(take.uid.as_str());
                let sockets = kept.map(|kept| kept.sockets.as_slice()).unwrap_or_default();
                let (sockets, fds) = sockets.iter().cloned().unzip();
                (done(sockets), fds)
            }
            None => refused("not a request of this version".to_owned()),
        }
    }

    fn put(&self, put: keeper::Put, fds: Vec<OwnedFd>) -> Result<(), String> {
        if put.sockets.len() != fds.len() || fds.len() > FDS_MAX {
            return Err(format!(
                "{} descriptors for {} sockets",
                fds.len(),
                put.sockets.len()
            ));
        }
        let mut pods = self.lock();
        // The pod may be gone by now; keeping its sockets would keep its ports open.
        let Some(kept) = pods.get_mut(put.uid.as_str()) else {
            return Err("the pod is not known".to_owned());
        };
        let before = std::mem::take(&mut kept.sockets);
        kept.sockets = put
            .sockets
            .into_iter()
            .zip(fds.into_iter().map(Arc::new))
            .collect();
        drop(pods);
        drop(before);
        Ok(())
    }
}

fn done(sockets: Vec<keeper::Socket>) -> keeper::Answer {
    keeper::Answer {
        error: String::new(),
        sockets,
        // An answer without a field set would be an empty packet.
        ok: true,
    }
}

/// Opens the socket.
///
/// # Errors
/// When the path cannot be used.
pub fn listen(path: &Path) -> Result<AsyncSeqPacketListener, SeqPacketError> {
    SeqPacketListener::bind(path)?.into_async()
}

/// Serves clients until the agent stops.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: AsyncSeqPacketListener,
    keeper: Keeper,
    drain: DrainWatch,
) -> Result<(), SeqPacketError> {
    let connections = ConnectionTracker::new(CONNECTIONS_MAX);
    loop {
        let place = connections.reserve().await;
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = drain.started() => break,
        };
        match accepted {
            Ok(connection) => {
                let keeper = keeper.clone();
                place.spawn(async move {
                    if let Err(error) = serve_one(&connection, &keeper).await {
                        tracing::debug!(error = chain(&error), "keeper connection ended");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "keeper connection not accepted");
                // Out of descriptors: closing ones come first.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    connections.abort_all();
    Ok(())
}

async fn serve_one(connection: &AsyncSeqPacket, keeper: &Keeper) -> Result<(), SeqPacketError> {
    while let Ok(packet) = timeout(IDLE, connection.receive(PACKET_BYTES_MAX)).await {
        let Some(packet) = packet? else {
            return Ok(());
        };
        let (answer, fds) = keeper.answer(packet);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let bytes = answer.encode_to_vec();
        if timeout(SEND_DEADLINE, connection.send(&bytes, &fds))
            .await
            .is_err()
        {
            return Ok(());
        }
    }
    Ok(())
}

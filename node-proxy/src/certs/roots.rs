//! The published bundle of roots: a root that is new in it is trusted before the first
//! certificate under it comes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use culvert_runtime::{DrainWatch, chain};
use culvert_tls::{CertificateStore, RootFile};

/// A rotation waits much longer than this between its steps. The file is polled: a
/// lost event would be an outage.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Takes the roots of a file into use, whenever it changes, until the process stops.
pub async fn follow_roots(path: PathBuf, store: Arc<CertificateStore>, drain: DrainWatch) {
    let file = RootFile::new(path.clone());
    let mut last_error = String::new();
    loop {
        let taken = file
            .roots()
            .and_then(|roots| store.set_published_roots(roots));
        match taken {
            Ok(true) => tracing::info!(file = %path.display(), "roots taken into use"),
            Ok(false) => {}
            // The same fault is told once.
            Err(error) => {
                let text = chain(&error);
                if text != last_error {
                    tracing::warn!(file = %path.display(), error = text, "roots not usable");
                    last_error = text;
                }
            }
        }
        tokio::select! {
            () = drain.stopped() => return,
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
}

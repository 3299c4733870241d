//! Output of containers and of the mesh's programs, to files that do not grow
//! without bound.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::fs::{self, File, OpenOptions};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// Size at which a log starts anew; one earlier file is kept. What a person scrolls
/// through, twice, for each container.
const LOG_BYTES_MAX: u64 = 10 << 20;
/// Bytes read at once.
const CHUNK_BYTES: usize = 16 << 10;

/// Name of the earlier part of a log.
pub(crate) fn rotated(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// An open log.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Log {
    /// Opens a log to append to.
    pub(crate) async fn open(path: PathBuf) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).await?;
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .await?;
        let length = file.metadata().await?.len();
        Ok(Self { path, file, length })
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.length >= LOG_BYTES_MAX {
            fs::rename(&self.path, rotated(&self.path)).await?;
            self.file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(&self.path)
                .await?;
            self.length = 0;
        }
        self.file.write_all(bytes).await?;
        self.file.flush().await?;
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// Copies a program's output to its log until both pipes are closed. When the log
/// cannot be written the output is read on and dropped: a full disk must not stop
/// the program.
pub(crate) async fn pump(
    path: PathBuf,
    mut output: impl AsyncRead + Unpin,
    mut errors: impl AsyncRead + Unpin,
) {
    let mut log = match Log::open(path.clone()).await {
        Ok(log) => Some(log),
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "open log");
            None
        }
    };
    let (mut from_output, mut from_errors) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let (mut output_open, mut errors_open) = (true, true);
    while output_open || errors_open {
        let (bytes, open) = tokio::select! {
            read = output.read(&mut from_output), if output_open => {
                (&from_output[..*read.as_ref().unwrap_or(&0)], &mut output_open)
            }
            read = errors.read(&mut from_errors), if errors_open => {
                (&from_errors[..*read.as_ref().unwrap_or(&0)], &mut errors_open)
            }
        };
        *open = !bytes.is_empty();
        if let Some(open_log) = log.as_mut().filter(|_| !bytes.is_empty())
            && let Err(error) = open_log.write(bytes).await
        {
            tracing::error!(path = %path.display(), %error, "write log");
            log = None;
        }
    }
}

/// Size at which a file that another program appends to starts anew.
const FOREIGN_BYTES_MAX: u64 = 64 << 20;
/// How often such files are looked at.
const FOREIGN_LOOK: Duration = Duration::from_secs(5);

/// Keeps files small that other programs write themselves: the content is moved
/// aside and the file cut, which suits a writer that appends. The lines of the
/// moment between are lost.
pub(crate) async fn keep_small(files: Vec<PathBuf>) {
    loop {
        for file in &files {
            if let Err(error) = cut(file).await {
                tracing::warn!(file = %file.display(), %error, "cut log");
            }
        }
        tokio::time::sleep(FOREIGN_LOOK).await;
    }
}

async fn cut(path: &Path) -> io::Result<()> {
    let length = match fs::metadata(path).await {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if length < FOREIGN_BYTES_MAX {
        return Ok(());
    }
    fs::copy(path, rotated(path)).await?;
    OpenOptions::new()
        .write(true)
        .open(path)
        .await?
        .set_len(0)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_pipes_arrive_and_old_output_is_kept_once() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("logs/c.log");
        pump(path.clone(), &b"out\n"[..], &b"err\n"[..]).await;
        let text = std::fs::read_to_string(&path).expect("log");
        assert!(text.contains("out\n") && text.contains("err\n"), "{text:?}");
        let mut log = Log::open(path.clone()).await.expect("open");
        log.length = LOG_BYTES_MAX;
        log.write(b"new\n").await.expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("log"), "new\n");
        assert!(rotated(&path).exists());
    }

    #[tokio::test]
    async fn a_foreign_log_is_cut_when_it_is_large() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("access.log");
        cut(&path).await.expect("not there yet");
        std::fs::write(&path, "small").expect("written");
        cut(&path).await.expect("looked at");
        assert!(!rotated(&path).exists());
        let large = std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("open");
        large.set_len(FOREIGN_BYTES_MAX).expect("grown");
        cut(&path).await.expect("cut");
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 0);
        assert_eq!(
            std::fs::metadata(rotated(&path)).expect("there").len(),
            FOREIGN_BYTES_MAX
        );
    }
}

use std::path::Path;
use std::time::Duration;

use super::authority::Pair;
use super::{CertificateError, Served};
use crate::metrics::WebhookMetrics;

/// How often the files are looked at, as controller-runtime does.
const INTERVAL: Duration = Duration::from_secs(10);

/// Serves `tls.crt` and `tls.key` of a folder, and what becomes of them.
pub(crate) async fn watch(folder: &Path, served: &Served, metrics: &WebhookMetrics) {
    let mut failing = false;
    loop {
        let read = read(folder).and_then(|pair| served.serve(&pair));
        metrics.certificate_read(read.is_ok());
        match read {
            Ok(()) => failing = false,
            Err(error) => {
                served.problem(error.to_string());
                if !failing {
                    tracing::error!(%error, "the serving certificate cannot be read; the last one goes on being served");
                }
                failing = true;
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Two small files: nothing else waits noticeably.
fn read(folder: &Path) -> Result<Pair, CertificateError> {
    let text = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).map_err(|source| CertificateError::File { path, source })
    };
    Ok(Pair { certificate: text("tls.crt")?, key: text("tls.key")? })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::{authority, served::Served};
    use super::*;
    use crate::Metrics;

    fn pair() -> Pair {
        let now = Timestamp::UNIX_EPOCH + Duration::from_secs(86_400);
        let ca = authority::authority("ca", now, INTERVAL).unwrap();
        authority::leaf(&ca, &["localhost".to_owned()], now, INTERVAL).unwrap()
    }

    fn write(folder: &Path, pair: &Pair) {
        std::fs::write(folder.join("tls.crt"), &pair.certificate).unwrap();
        std::fs::write(folder.join("tls.key"), &pair.key).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn files_are_served_again_when_they_change_and_kept_when_they_break() {
        let folder = tempfile::tempdir().unwrap();
        let (served, metrics) = (Served::new(true), Metrics::new());
        let (watched, counted, path) = (served.clone(), metrics.webhooks().clone(), folder.path().to_owned());
        let watching = tokio::spawn(async move { watch(&path, &watched, &counted).await });

        tokio::time::sleep(Duration::from_secs(1)).await;
        let problem = served.check().unwrap_err();
        assert!(problem.contains("tls.crt") && problem.contains("is the Secret"), "{problem}");

        let (first, second) = (pair(), pair());
        write(folder.path(), &first);
        served.ready().await;
        assert_eq!(served.check(), Ok(()));
        assert_eq!(served.pair(), Some(first));

        // A key of another certificate: half of a change.
        std::fs::write(folder.path().join("tls.key"), &second.key).unwrap();
        tokio::time::sleep(INTERVAL + Duration::from_secs(1)).await;
        assert_ne!(served.pair(), Some(second.clone()));
        write(folder.path(), &second);
        tokio::time::sleep(INTERVAL + Duration::from_secs(1)).await;
        assert_eq!(served.pair(), Some(second));
        let text = metrics.encode();
        assert!(text.contains("certwatcher_read_certificate_total 4"), "{text}");
        assert!(text.contains("certwatcher_read_certificate_errors_total 2"), "{text}");
        watching.abort();
    }
}

//! The request of a scraper: HTTP/1.1 `GET /metrics`, and nothing else.

/// Most bytes of a request's head.
pub const HEAD_LEN_MAX: usize = 4096;
/// The only path.
pub const PATH: &str = "/metrics";

/// What has come so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrapeRequest {
    /// The head has not come to its end.
    Incomplete,
    /// The metrics are asked for.
    Metrics,
    /// It is to be refused, with an HTTP status and its words.
    Refused(u16, &'static str),
}

impl ScrapeRequest {
    /// Reads `head`, which is all that has come. Bytes after the head are not looked at.
    #[must_use]
    pub fn read(head: &[u8]) -> Self {
        let head = &head[..head.len().min(HEAD_LEN_MAX)];
        let Some(end) = head_end(head) else {
            return match head.len() < HEAD_LEN_MAX {
                true => Self::Incomplete,
                false => Self::Refused(431, "Request Header Fields Too Large"),
            };
        };
        let bad = Self::Refused(400, "Bad Request");
        let Ok(text) = std::str::from_utf8(&head[..end]) else { return bad };
        let mut words = text.lines().next().unwrap_or_default().split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return bad;
        };
        if !version.starts_with("HTTP/1.") {
            return bad;
        }
        let path = target.split('?').next().unwrap_or_default();
        match (method, path) {
            ("GET", PATH) => Self::Metrics,
            ("GET", _) => Self::Refused(404, "Not Found"),
            _ => Self::Refused(405, "Method Not Allowed"),
        }
    }
}

/// Where the head ends: behind the first empty line.
fn head_end(head: &[u8]) -> Option<usize> {
    let behind = |mark: &[u8]| head.windows(mark.len()).position(|part| part == mark);
    behind(b"\r\n\r\n").into_iter().chain(behind(b"\n\n")).min()
}

/// The head of a response with a body of `len` bytes; the connection ends with it.
#[must_use]
pub fn response_head(status: u16, words: &str, content_type: &str, len: usize) -> String {
    format!(
        "HTTP/1.1 {status} {words}\r\nContent-Type: {content_type}\r\nContent-Length: {len}\r\n\
         Connection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_metrics_can_be_had() {
        for (head, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n", ScrapeRequest::Metrics),
            ("GET /metrics?x=1 HTTP/1.0\n\n", ScrapeRequest::Metrics),
            ("GET /metrics HTTP/1.1\r\n\r\nmore", ScrapeRequest::Metrics),
            ("GET /metrics HTTP/1.1\r\nHost: here\r\n", ScrapeRequest::Incomplete),
            ("", ScrapeRequest::Incomplete),
            ("GET / HTTP/1.1\r\n\r\n", ScrapeRequest::Refused(404, "Not Found")),
            ("POST /metrics HTTP/1.1\r\n\r\n", ScrapeRequest::Refused(405, "Method Not Allowed")),
            ("GET /metrics HTTP/2\r\n\r\n", ScrapeRequest::Refused(400, "Bad Request")),
            ("GET  /metrics HTTP/1.1\r\n\r\n", ScrapeRequest::Refused(400, "Bad Request")),
            ("\r\n\r\n", ScrapeRequest::Refused(400, "Bad Request")),
        ] {
            assert_eq!(ScrapeRequest::read(head.as_bytes()), expected, "{head:?}");
        }
        let invalid = ScrapeRequest::read(b"GET \xff HTTP/1.1\r\n\r\n");
        assert_eq!(invalid, ScrapeRequest::Refused(400, "Bad Request"));
    }

    #[test]
    fn a_head_is_bounded() {
        let mut head = b"GET /metrics HTTP/1.1\r\nA: ".to_vec();
        head.resize(HEAD_LEN_MAX - 1, b'a');
        assert_eq!(ScrapeRequest::read(&head), ScrapeRequest::Incomplete);
        head.resize(2 * HEAD_LEN_MAX, b'a');
        assert!(matches!(ScrapeRequest::read(&head), ScrapeRequest::Refused(431, _)));
    }

    proptest! {
        #[test]
        fn more_bytes_change_no_answer(mut head in "(GET|[A-Z ]{3}) ?/?(metrics)?[ -~\r\n]{0,40}\n?\r?\n?", more in any::<u8>()) {
            let read = ScrapeRequest::read(head.as_bytes());
            head.push(char::from(more));
            let longer = ScrapeRequest::read(head.as_bytes());
            prop_assert!(read == ScrapeRequest::Incomplete || read == longer, "{read:?} {longer:?}");
        }
    }
}

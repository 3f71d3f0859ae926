//! Errors of the hubs: modelscope, modelscope_hub, huggingface_hub, datasets and transformers.
//!
//! The same failure has several exceptions, of the HTTP library, the hub and the caller, one after another. Exceptions
//! of HTTP libraries count only if they name a hub: trainers also call other services.

use crate::Cause;

/// Classes whose name alone names the cause.
const CLASSES: [(&str, Cause); 15] = [
    ("GatedRepoError", Cause::SourceUnauthorized),
    ("LocalTokenNotFoundError", Cause::SourceUnauthorized),
    ("NotLoginException", Cause::SourceUnauthorized),
    ("XetAuthorizationError", Cause::SourceUnauthorized),
    ("DisabledRepoError", Cause::SourceUnauthorized),
    ("RepositoryNotFoundError", Cause::SourceNotFound),
    ("RevisionNotFoundError", Cause::SourceNotFound),
    ("RemoteEntryNotFoundError", Cause::SourceNotFound),
    ("EntryNotFoundError", Cause::SourceNotFound),
    ("BucketNotFoundError", Cause::SourceNotFound),
    ("DatasetNotFoundError", Cause::SourceNotFound),
    ("DataFilesNotFoundError", Cause::SourceNotFound),
    ("NoValidRevisionError", Cause::SourceNotFound),
    ("LocalEntryNotFoundError", Cause::SourceUnreachable),
    ("OfflineModeIsEnabled", Cause::SourceUnreachable),
];

/// Classes of modelscope with common names: they count only with its module.
const MODELSCOPE: [(&str, Cause); 8] = [
    ("AuthenticationError", Cause::SourceUnauthorized),
    ("PermissionDeniedError", Cause::SourceUnauthorized),
    ("NotExistError", Cause::SourceNotFound),
    ("NetworkError", Cause::SourceUnreachable),
    ("RequestTimeoutError", Cause::SourceUnreachable),
    ("ServerError", Cause::SourceUnreachable),
    ("RateLimitError", Cause::SourceUnreachable),
    ("FileDownloadError", Cause::SourceUnreachable),
];

/// Codes at the beginning of messages of modelscope_hub, whatever the class.
const CODES: [(&str, Cause); 7] = [
    ("[E3001]", Cause::SourceUnauthorized),
    ("[E3002]", Cause::SourceUnauthorized),
    ("[E3020]", Cause::SourceNotFound),
    ("[E1001]", Cause::SourceUnreachable),
    ("[E1002]", Cause::SourceUnreachable),
    ("[E1020]", Cause::SourceUnreachable),
    ("[E1021]", Cause::SourceUnreachable),
];

/// Words of messages, whatever the class. transformers raises OSError, and modelscope HTTPError.
const WORDS: [(&str, Cause); 13] = [
    ("is a gated dataset on the Hub", Cause::SourceUnauthorized),
    ("You are trying to access a gated repo", Cause::SourceUnauthorized),
    ("is a gated repository", Cause::SourceUnauthorized),
    ("Authentication token does not exist, failed to access", Cause::SourceUnauthorized),
    ("The authentication token is invalid, failed to access", Cause::SourceUnauthorized),
    ("is not a local folder and is not a valid model identifier", Cause::SourceNotFound),
    ("is not a local folder or a valid repository name", Cause::SourceNotFound),
    ("is not a valid git identifier", Cause::SourceNotFound),
    ("does not exist or is not accessible, Request id", Cause::SourceNotFound),
    ("doesn't exist on the Hub", Cause::SourceNotFound),
    ("Couldn't reach '", Cause::SourceUnreachable),
    ("Couldn't reach the Hugging Face Hub", Cause::SourceUnreachable),
    ("We couldn't connect to '", Cause::SourceUnreachable),
];

/// Statuses as requests, httpx and huggingface_hub print them.
const STATUSES: [(&str, Cause); 12] = [
    ("401 Client Error", Cause::SourceUnauthorized),
    ("403 Client Error", Cause::SourceUnauthorized),
    ("401 Unauthorized", Cause::SourceUnauthorized),
    ("403 Forbidden", Cause::SourceUnauthorized),
    ("404 Client Error", Cause::SourceNotFound),
    ("404 Not Found", Cause::SourceNotFound),
    ("429 Client Error", Cause::SourceUnreachable),
    ("429 Too Many Requests", Cause::SourceUnreachable),
    ("500 ", Cause::SourceUnreachable),
    ("502 ", Cause::SourceUnreachable),
    ("503 ", Cause::SourceUnreachable),
    ("504 ", Cause::SourceUnreachable),
];
const HTTP: [&str; 4] = ["HTTPError", "HTTPStatusError", "HfHubHTTPError", "BadRequestError"];
const CONNECTION: [&str; 13] = [
    "ConnectionError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectTimeoutError",
    "ReadTimeout",
    "ReadTimeoutError",
    "ReadError",
    "MaxRetryError",
    "NewConnectionError",
    "NameResolutionError",
    "SSLError",
    "ProxyError",
    "ChunkedEncodingError",
];
/// Parts of the addresses of hubs, and of mirrors of them.
const ADDRESSES: [&str; 8] = [
    "huggingface.co",
    "hf.co",
    "hf-mirror.com",
    "modelscope",
    "/api/models/",
    "/api/datasets/",
    "/api/v1/models/",
    "/api/v1/datasets/",
];

/// Lines of their own in the messages of huggingface_hub, after the class and the status.
const LINES: [(&str, Cause); 6] = [
    ("Cannot access gated repo for url ", Cause::SourceUnauthorized),
    ("403 Forbidden: ", Cause::SourceUnauthorized),
    ("Repository Not Found for url: ", Cause::SourceNotFound),
    ("Revision Not Found for url: ", Cause::SourceNotFound),
    ("Entry Not Found for url: ", Cause::SourceNotFound),
    ("Bucket Not Found for url: ", Cause::SourceNotFound),
];

/// The cause of an exception; the class is qualified by its module. Of what its class, status and words name, the cause
/// that counts first is right: a repository that is not found with status 401 may exist.
pub(crate) fn cause_of(class: &str, message: &str) -> Option<Cause> {
    let name = class.rsplit('.').next().unwrap_or_default();
    let is_modelscope = class.starts_with("modelscope");
    let is_of_hub = is_modelscope || class.starts_with("huggingface_hub");
    let is_about_hub = is_of_hub || ADDRESSES.iter().any(|address| message.contains(address));
    let is_status = is_of_hub || HTTP.contains(&name) && is_about_hub;
    if let Some(cause) = first(&CODES, |code| message.starts_with(code)) {
        return Some(cause);
    }
    // A folder that was given as a model is no model of a hub.
    let is_missing_file =
        message.contains("does not appear to have a file named") && !message.starts_with(['/', '.']);
    // Of older releases of modelscope.
    let is_missing_record = message.starts_with("Response details: ") && message.contains("record not found");
    [
        first(&CLASSES, |known| known == name),
        first(&MODELSCOPE, |known| known == name).filter(|_| is_modelscope),
        first(&WORDS, |words| message.contains(words)),
        first(&STATUSES, |status| message.contains(status)).filter(|_| is_status),
        (is_missing_file || is_missing_record).then_some(Cause::SourceNotFound),
        (CONNECTION.contains(&name) && is_about_hub).then_some(Cause::SourceUnreachable),
    ]
    .into_iter()
    .flatten()
    .min()
}

/// The cause that a line of a message names after its first line.
pub(crate) fn cause_of_continuation(text: &str) -> Option<Cause> {
    first(&LINES, |start| text.starts_with(start))
}

fn first(table: &[(&str, Cause)], is_match: impl Fn(&str) -> bool) -> Option<Cause> {
    table.iter().find(|(words, _)| is_match(words)).map(|(_, cause)| *cause)
}

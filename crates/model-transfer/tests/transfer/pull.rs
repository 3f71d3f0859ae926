//! Pulls without faults, and invalid sources.

use api::loader::ExitCode;

use crate::{
    gateway::Gateway,
    program::Program,
    proxy::Break,
    scene::{MIB, SOURCE, Scene, files, noise},
};

#[test]
fn a_folder_of_the_store_becomes_the_folder() {
    let scene = Scene::new();
    let (small, large) = (noise(1, 5000), noise(2, 40 * MIB + 17));
    scene.gateway.put("qwen/config.json", &small);
    scene.gateway.put("qwen/tokenizer/a b ü.json", b"");
    scene.gateway.put_in_parts("qwen/model.safetensors", &large);
    scene.gateway.put("qwen2/other.bin", b"not of this model");
    scene.pull().run().succeeded();
    assert_eq!(
        scene.pulled(),
        files([("config.json", &small), ("tokenizer/a b ü.json", b""), ("model.safetensors", &large)])
    );
}

#[test]
fn a_second_run_fetches_nothing_again() {
    let scene = Scene::new();
    scene.gateway.put("qwen/config.json", &noise(1, 5000));
    scene.gateway.put_in_parts("qwen/model.bin", &noise(2, 6 * MIB));
    scene.pull().run().succeeded();
    let pulled = scene.pulled();
    scene.proxy.take_requests();
    scene.pull().run().succeeded();
    let requests = scene.proxy.take_requests();
    assert!(requests.iter().all(|request| request.is_list()), "{requests:?}");
    assert_eq!(scene.pulled(), pulled);
}

#[test]
fn what_was_not_waited_for_counts_until_the_machine_is_booted_again() {
    let scene = Scene::new();
    scene.gateway.put("qwen/config.json", &noise(1, 5000));
    scene.gateway.put_in_parts("qwen/model.bin", &noise(2, 6 * MIB));
    let whole = 5000 + 6 * MIB as u64;
    let no_sync = || scene.pull().env("TRANSFER_NO_SYNC", "true").run().succeeded();
    no_sync();
    let pulled = scene.pulled();
    assert_eq!(scene.proxy.take_object_bytes(), whole);
    no_sync();
    assert_eq!(scene.proxy.take_object_bytes(), 0);

    let record = scene.folder().join(".model-transfer.jsonl");
    let this_boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let noted = std::fs::read_to_string(&record).unwrap();
    let another = noted.replace(this_boot.trim(), "another boot");
    assert_ne!(noted, another);
    std::fs::write(&record, another).unwrap();
    std::fs::write(scene.folder().join("config.json"), [0; 5000]).unwrap();
    no_sync();
    assert_eq!(scene.proxy.take_object_bytes(), whole);
    assert_eq!(scene.pulled(), pulled);

    // Waited for at last, it survives: without being fetched once more.
    scene.pull().run().succeeded();
    assert_eq!(scene.proxy.take_object_bytes(), 0);
    assert!(!std::fs::read_to_string(&record).unwrap().contains(this_boot.trim()));
}

#[test]
fn only_what_has_changed_is_fetched_and_what_has_left_is_removed() {
    let scene = Scene::new();
    scene.gateway.put("qwen/same.bin", &noise(1, 5000));
    scene.gateway.put("qwen/changed.bin", &noise(2, 5000));
    scene.gateway.put("qwen/gone.bin", &noise(3, 5000));
    scene.pull().run().succeeded();
    scene.gateway.put("qwen/changed.bin", &noise(4, 5000));
    std::fs::remove_file(scene.gateway.file("qwen/gone.bin")).unwrap();
    scene.proxy.take_object_bytes();
    scene.pull().run().succeeded();
    assert_eq!(scene.proxy.take_object_bytes(), 5000);
    assert_eq!(scene.pulled(), files([("same.bin", &noise(1, 5000)), ("changed.bin", &noise(4, 5000))]));
}

#[test]
fn one_object_is_a_source_too() {
    let scene = Scene::new();
    scene.gateway.put("qwen/model.gguf", b"weights");
    scene.pull_from("s3://models/qwen/model.gguf").run().succeeded();
    assert_eq!(scene.pulled(), files([("model.gguf", b"weights")]));
}

#[test]
fn two_thousand_objects_are_listed_and_fetched() {
    let scene = Scene::new();
    // Beside the server: two thousand uploads would take longer than what is tested.
    std::fs::create_dir_all(scene.gateway.file("qwen/sub")).unwrap();
    for number in 0..2000 {
        std::fs::write(scene.gateway.file(&format!("qwen/sub/{number}.json")), number.to_string()).unwrap();
    }
    scene.pull().run().succeeded();
    let pulled = scene.pulled();
    assert_eq!(pulled.len(), 2000);
    assert!((0..2000).all(|number| pulled[&format!("sub/{number}.json")] == number.to_string().as_bytes()));
    let lists = scene.proxy.take_requests().iter().filter(|request| request.is_list()).count();
    assert_eq!(lists, 2, "a thousand per page");
}

#[test]
fn what_is_not_there_is_reported() {
    let scene = Scene::new();
    scene.gateway.put("qwen/config.json", b"x");
    for (source, reason) in [
        ("s3://no-such-bucket/qwen", "there is no such bucket"),
        (
            "s3://models/llama",
            "s3://models/llama has no object: upload the model, or correct the bucket or the prefix",
        ),
        ("s3://models/qwe", "s3://models/qwe has no object"),
    ] {
        std::fs::remove_dir_all(scene.folder()).ok();
        scene.pull_from(source).run().failed(ExitCode::SourceNotFound, reason);
    }
}

#[test]
fn wrong_credentials_are_reported_at_once_and_never_shown() {
    let scene = Scene::new();
    scene.gateway.put("qwen/config.json", b"x");
    let wrong_secret = scene.pull().env("AWS_SECRET_ACCESS_KEY", "another-secret").run();
    wrong_secret.failed(ExitCode::SourceUnauthorized, "403 SignatureDoesNotMatch");
    assert!(!wrong_secret.output.contains("another-secret"), "{}", wrong_secret.output);
    let unknown_key = scene.pull().env("AWS_ACCESS_KEY_ID", "AKIANOBODY").run();
    unknown_key.failed(ExitCode::SourceUnauthorized, "refused the credentials");
    assert!(!unknown_key.output.contains("AKIANOBODY"), "{}", unknown_key.output);
    let anonymous = scene.pull().without_env("AWS_ACCESS_KEY_ID").without_env("AWS_SECRET_ACCESS_KEY").run();
    anonymous.failed(ExitCode::SourceUnauthorized, "403 AccessDenied");
}

#[test]
fn a_loader_that_is_started_again_waits_for_the_model_inside_its_process() {
    let scene = Scene::new();
    scene.pull().run().failed(ExitCode::SourceNotFound, "has no object");
    let again = scene.pull().start();
    again.until_says("looking again", 1);
    scene.gateway.put("qwen/config.json", b"x");
    again.wait().succeeded();
    assert_eq!(scene.pulled(), files([("config.json", b"x")]));
}

#[test]
fn tls_is_trusted_by_the_authorities_of_the_system_and_those_that_are_given() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let gateway = Gateway::start_signed(folder.path(), "127.0.0.1");
    std::fs::create_dir(gateway.file("qwen")).unwrap();
    std::fs::write(gateway.file("qwen/config.json"), "{}").unwrap();
    let rcgen::CertifiedKey { cert: other, .. } =
        rcgen::generate_simple_self_signed(["other".to_owned()]).unwrap();
    std::fs::write(at("other.pem"), other.pem()).unwrap();
    std::fs::write(at("empty.pem"), "").unwrap();

    let pull = || {
        Program::new(gateway.address, ["pull", SOURCE, at("models").to_str().unwrap()])
            .env("AWS_ENDPOINT_URL", &format!("https://{}", gateway.address))
            .env("TRANSFER_PATIENCE_SECONDS", "1")
    };
    let given = |name: &str| pull().arg(&format!("--ca-file={}", at(name).display()));
    let system = |program: Program, name: &str| program.env("SSL_CERT_FILE", at(name).to_str().unwrap());
    pull().run().failed(ExitCode::SourceUnreachable, "spec.modelStore.caSecretName");
    given("other.pem").run().failed(ExitCode::SourceUnreachable, "spec.modelStore.caSecretName");
    for name in ["empty.pem", "missing.pem"] {
        given(name).run().failed(ExitCode::SourceUnreachable, "no authority can be read from");
    }
    given("cert.pem").run().succeeded();
    assert_eq!(std::fs::read(at("models/config.json")).unwrap(), b"{}");
    system(pull(), "cert.pem").run().succeeded();
    system(given("other.pem"), "cert.pem").run().succeeded();
}

#[test]
fn tls_goes_through_the_proxy_of_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let scene = Scene::before(Gateway::start_signed(folder.path(), "store.test"));
    std::fs::create_dir(scene.gateway.file("qwen")).unwrap();
    std::fs::write(scene.gateway.file("qwen/config.json"), "{}").unwrap();
    let ended = scene
        .pull()
        .env("AWS_ENDPOINT_URL", "https://store.test")
        .env("HTTPS_PROXY", &format!("http://{}", scene.proxy.address))
        .env("TRANSFER_CA_FILE", &at("cert.pem"))
        .run();
    ended.succeeded();
    let requests = scene.proxy.take_requests();
    assert!(
        !requests.is_empty() && requests.iter().all(|request| request.method == "CONNECT"),
        "{requests:?}"
    );
}

#[test]
fn http_is_spoken_only_to_an_endpoint_that_says_so() {
    let scene = Scene::new();
    scene.gateway.put("qwen/config.json", b"x");
    let https = format!("https://{}", scene.proxy.address);
    let ended = scene.pull().env("AWS_ENDPOINT_URL", &https).env("TRANSFER_PATIENCE_SECONDS", "1").run();
    ended.failed(ExitCode::SourceUnreachable, "has not answered");
}

/// A listing of one object, from a store without ETags.
fn listing(size: usize, changed: &str, more: bool) -> String {
    let next = if more { "<NextContinuationToken>x</NextContinuationToken>" } else { "" };
    let object = |key: &str| {
        format!(
            "<Contents><Key>qwen/{key}</Key><LastModified>{changed}</LastModified><Size>{size}</Size></Contents>"
        )
    };
    let objects: String = if more {
        (0..1000).map(|number| object(&number.to_string())).collect()
    } else {
        object("config.json")
    };
    format!("<ListBucketResult><IsTruncated>{more}</IsTruncated>{next}{objects}</ListBucketResult>")
}

#[test]
fn without_etags_the_time_of_the_last_change_tells_versions_apart() {
    let scene = Scene::new();
    scene.gateway.put("qwen/config.json", b"{}");
    // 2020-01-01T00:00:00.900Z
    scene.gateway.changed_at("qwen/config.json", 1_577_836_800_900);
    let pull = |listed: &'static str| {
        scene.proxy.rule(move |request| {
            if request.is_list() { Break::Answer(listing(2, listed, false)) } else { Break::Nothing }
        });
        scene.pull().env("TRANSFER_PATIENCE_SECONDS", "1").run()
    };
    pull("2019-12-31T23:59:00.000Z").failed(ExitCode::ChecksumMismatch, "it was changed while it was read");
    assert!(scene.pulled().is_empty());
    pull("2020-01-01T00:00:00.900Z").succeeded();
    assert_eq!(scene.pulled(), files([("config.json", b"{}")]));
}

#[test]
fn a_listing_without_an_end_is_refused() {
    let scene = Scene::new();
    scene.proxy.rule(|_| Break::Answer(listing(1, "2020-01-01T00:00:00.000Z", true)));
    scene.pull().run().failed(ExitCode::SourceNotFound, "has more than 50000 objects");
    assert_eq!(scene.proxy.take_requests().len(), 51);
}

#[test]
fn a_page_of_a_listing_that_is_too_large_is_refused() {
    let scene = Scene::new();
    let page = listing(1, "2020-01-01T00:00:00.000Z", false);
    let large = page.replace("<Contents>", &format!("{}<Contents>", " ".repeat(9 * MIB)));
    scene.proxy.rule(move |_| Break::Answer(large.clone()));
    let ended = scene.pull().env("TRANSFER_PATIENCE_SECONDS", "1").run();
    ended.failed(ExitCode::ChecksumMismatch, "a page of the listing is larger than 8 MiB");
}

#[test]
fn one_page_shows_whether_an_empty_object_is_a_folder() {
    let scene = Scene::new();
    scene.gateway.put("qwen/empty", b"");
    scene.gateway.put("qwen/config.json", b"{}");
    scene.proxy.rule(|request| {
        let is_below = request.is_list() && request.query.contains("prefix=qwen%2Fempty%2F");
        if is_below { Break::Answer(listing(1, "2020-01-01T00:00:00.000Z", true)) } else { Break::Nothing }
    });
    scene.pull().run().succeeded();
    assert_eq!(scene.pulled(), files([("config.json", b"{}"), ("empty", b"")]));
    assert_eq!(scene.proxy.take_requests().iter().filter(|request| request.is_list()).count(), 2);
}

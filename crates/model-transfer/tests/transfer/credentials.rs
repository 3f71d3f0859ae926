//! Credentials that are missing, incomplete, refused, or signed with a clock that is wrong.

use api::loader::ExitCode;

use crate::{
    gateway::Gateway,
    program::Program,
    proxy::{Break, DATE},
    scene::{SOURCE, Scene},
};

/// With the identity of a pod instead of keys.
fn of_pod(program: Program, token: &str) -> Program {
    let program = program.without_env("AWS_ACCESS_KEY_ID").without_env("AWS_SECRET_ACCESS_KEY");
    program.env("AWS_WEB_IDENTITY_TOKEN_FILE", token)
}

#[test]
fn a_token_that_is_not_there_is_named() {
    let scene = Scene::new();
    let pull = || of_pod(scene.pull(), "/nowhere/token");
    let ended = pull().env("AWS_ROLE_ARN", "arn:aws:iam::1:role/reader").run();
    ended.failed(ExitCode::SourceUnauthorized, "/nowhere/token");
    assert!(ended.reported.contains("spec.serviceAccountName"), "{}", ended.reported);
    pull().run().failed(ExitCode::SourceUnauthorized, "AWS_ROLE_ARN is not");
    assert_eq!(scene.proxy.take_requests().len(), 0);
}

#[test]
fn a_token_service_that_refuses_the_pod_is_no_fault_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let gateway = Gateway::start_signed(folder.path(), "127.0.0.1");
    std::fs::write(at("token"), "a-token-that-stays-secret").unwrap();
    let pull = Program::new(gateway.address, ["pull", SOURCE, &at("models")]);
    let ended = of_pod(pull, &at("token"))
        .env("AWS_ROLE_ARN", "arn:aws:iam::1:role/reader")
        .env("AWS_ENDPOINT_URL_STS", &format!("https://{}", gateway.address))
        .arg(&format!("--ca-file={}", at("cert.pem")))
        .run();
    ended.failed(ExitCode::SourceUnauthorized, "the token service refused the pod's identity (4");
    assert!(!ended.output.contains("a-token-that-stays-secret"), "{}", ended.output);
}

#[test]
fn a_clock_that_is_wrong_is_no_fault_of_the_credentials() {
    let scene = Scene::new();
    scene.proxy.rule(|_| Break::Error(403, "RequestTimeTooSkewed"));
    let ended = scene.pull().run();
    ended.failed(ExitCode::SourceUnauthorized, &format!("its clock shows {DATE}): correct the clock"));
    assert!(!ended.reported.contains("Secret"), "{}", ended.reported);
}

#[test]
fn a_bucket_that_is_not_public_asks_for_a_secret() {
    let scene = Scene::new();
    let anonymous = scene.pull().without_env("AWS_ACCESS_KEY_ID").without_env("AWS_SECRET_ACCESS_KEY").run();
    anonymous.failed(ExitCode::SourceUnauthorized, "name a Secret in spec.modelStore.secretName");
}

//! How requests name the bucket and reach the store: styles, proxies of the environment, redirects and regions.

use api::loader::ExitCode;

use crate::{
    gateway::{BUCKET, Gateway},
    program::Program,
    proxy::{Break, Proxy},
    scene::{SOURCE, Scene, files},
};

/// A store of this domain that refuses path-style requests, as Alibaba Cloud OSS does; its signatures cover the host.
fn strict(domain: &str) -> Scene {
    let scene = Scene::before(Gateway::start_virtual(domain));
    scene.gateway.put("qwen/config.json", b"{}");
    scene.proxy.rule(|request| {
        let is_path_style = request.path.starts_with(&format!("/{BUCKET}"));
        if is_path_style { Break::Error(403, "SecondLevelDomainForbidden") } else { Break::Nothing }
    });
    scene
}

/// No name of these tests can be resolved: all requests go through the proxy of the environment.
fn at(scene: &Scene, domain: &str, program: Program) -> Program {
    let proxy = format!("http://{}", scene.proxy.address);
    program.env("AWS_ENDPOINT_URL", &format!("http://{domain}")).env("HTTP_PROXY", &proxy)
}

#[test]
fn a_store_that_refuses_path_style_is_read_and_written_by_virtual_hosts() {
    let scene = strict("s3.test");
    let pull = || at(&scene, "s3.test", scene.pull());
    pull().run().failed(ExitCode::SourceUnreachable, "set spec.modelStore.addressing to VirtualHosted");
    scene.proxy.take_requests();
    pull().arg("--addressing=virtual-hosted").run().succeeded();
    assert_eq!(scene.pulled(), files([("config.json", b"{}")]));

    let folder = scene.folder();
    let push = Program::new(scene.proxy.address, ["push", folder.to_str().unwrap(), "s3://models/out"]);
    at(&scene, "s3.test", push).env("TRANSFER_ADDRESSING", "virtual-hosted").run().uploaded();
    assert_eq!(scene.gateway.get("out/config.json").as_deref(), Some(b"{}".as_slice()));
    let requests = scene.proxy.take_requests();
    assert!(requests.iter().all(|request| request.host == "models.s3.test"), "{requests:?}");
}

#[test]
fn the_style_of_a_known_store_needs_no_setting() {
    let domain = "oss-cn-test.aliyuncs.com";
    let scene = strict(domain);
    at(&scene, domain, scene.pull()).run().succeeded();
    assert_eq!(scene.pulled(), files([("config.json", b"{}")]));
    at(&scene, domain, scene.pull())
        .arg("--addressing=path")
        .run()
        .failed(ExitCode::SourceUnreachable, "403 SecondLevelDomainForbidden");
}

#[test]
fn an_address_has_no_virtual_hosts() {
    let scene = Scene::new();
    let ended = scene.pull().arg("--addressing=virtual-hosted").run();
    assert_eq!(ended.code, Some(ExitCode::Usage.code()), "{}", ended.output);
    assert!(ended.output.contains("use addressing Path"), "{}", ended.output);
    let unknown = scene.pull().arg("--addressing=dns").run();
    assert_eq!(unknown.code, Some(ExitCode::Usage.code()), "{}", unknown.output);
}

#[test]
fn a_host_that_needs_no_proxy_is_reached_without_it() {
    let scene = Scene::new();
    scene.gateway.put("qwen/config.json", b"{}");
    // Nothing listens there.
    let pull = || scene.pull().env("http_proxy", "http://127.0.0.1:1").env("TRANSFER_PATIENCE_SECONDS", "1");
    pull().run().failed(ExitCode::SourceUnreachable, "has not answered");
    pull().env("NO_PROXY", "10.0.0.0/8,127.0.0.1").run().succeeded();
}

#[test]
fn no_redirect_is_followed_to_another_host() {
    let scene = Scene::new();
    let elsewhere = Proxy::start(scene.gateway.address);
    scene.gateway.put("qwen/config.json", b"{}");
    for status in [301, 302, 307, 308] {
        let location = format!("Location: http://{}/models?list-type=2&signature=1\r\n", elsewhere.address);
        let location: &'static str = location.leak();
        scene.proxy.rule(move |_| Break::Status(status, location));
        let ended = scene.pull().env("AWS_SESSION_TOKEN", "a-token-that-stays-here").run();
        let reason = format!("redirects to http://{} ({status})", elsewhere.address);
        ended.failed(ExitCode::SourceUnreachable, &reason);
        assert!(ended.reported.contains("spec.modelStore.endpoint"), "{}", ended.reported);
    }
    assert_eq!(elsewhere.take_requests().len(), 0);
}

#[test]
fn a_bucket_of_another_region_is_reported_with_its_region() {
    let scene = Scene::new();
    for status in [301, 307, 400] {
        scene.proxy.rule(move |_| Break::Status(status, "x-amz-bucket-region: eu-west-1\r\n"));
        let ended = scene.pull().run();
        if status == 400 {
            // A bucket's region is no reason by itself.
            ended.failed(ExitCode::SourceUnreachable, "refused to answer (400)");
            continue;
        }
        ended.failed(ExitCode::SourceUnreachable, "the bucket is in region eu-west-1, not in us-east-1");
        assert!(ended.reported.contains("set spec.modelStore.region"), "{}", ended.reported);
    }
}

/// The store itself names the region that a signature must be for.
#[test]
fn a_signature_for_another_region_is_reported_with_the_region_of_the_store() {
    let scene = Scene::new();
    let ended = scene.pull_from(SOURCE).env("AWS_REGION", "eu-west-1").run();
    ended.failed(ExitCode::SourceUnreachable, "the bucket is in region us-east-1, not in eu-west-1");
}

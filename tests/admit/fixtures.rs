//! The documented manifests, applied with kubectl.

use std::fs;

use local_cluster::api_server::install::yaml_files;
use tests::Scene;

#[tokio::test]
async fn every_manifest_is_accepted_or_refused_as_its_comment_says() {
    let scene = tests::api_server().await;
    let mut applied = 0;
    for path in yaml_files(&tests::workspace().join("tests/fixtures")).unwrap() {
        let (name, text) = (path.display().to_string(), fs::read_to_string(&path).unwrap());
        let outcome = apply(&scene, &text);
        if text.contains("# Later") {
            let refused = outcome.expect_err(&name);
            assert!(refused.contains("no matches for kind"), "{name}: {refused}");
        } else if text.contains("must refuse") {
            let refused = outcome.expect_err(&name);
            assert!(
                refused.contains("spec.gpus") && refused.contains("must be of type integer"),
                "{refused}"
            );
        } else {
            outcome.unwrap_or_else(|refused| panic!("{name}: {refused}"));
            applied += 1;
        }
    }
    assert_eq!(applied, 9, "manifests that are accepted");
}

#[tokio::test]
async fn an_unknown_field_is_refused_by_its_name() {
    let scene = tests::api_server().await;
    let manifest = fs::read_to_string(tests::workspace().join("tests/fixtures/aiinference.yaml")).unwrap();
    let refused = apply(&scene, &format!("{manifest}  warmupTimeout: 5\n")).unwrap_err();
    assert!(refused.contains(r#"unknown field "spec.warmupTimeout""#), "{refused}");
}

#[tokio::test]
async fn client_side_apply_accepts_every_definition() {
    let scene = tests::api_server().await;
    let folder = tests::workspace().join("deploy/crds");
    let applied = scene.kubectl(&["apply", "--dry-run=server", "-f", &folder.display().to_string()]);
    assert_eq!(applied.lines().count(), 6, "{applied}");
}

/// `kubectl apply -f -`.
fn apply(scene: &Scene<'_>, manifest: &str) -> Result<String, String> {
    let output = scene.kubectl_with_input(&["apply", "-f", "-"], manifest);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

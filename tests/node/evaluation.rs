//! ModelEvaluation on real nodes: the runner starts a harness in the image of the harness, and the harness asks servers. It is
//! the stand-in for EvalScope in `tests/fake-evalscope`. Which answers are right is planted in the models.

use std::{fs, path::Path};

use api::{
    aiinference::{
        AIInference,
        evaluation::{ModelEvaluation, ModelEvaluationStatus, Phase},
    },
    conditions, labels, reasons,
};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod},
};
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use tests::{
    ENGINE_IMAGE, HARNESS_IMAGE, PRODUCT, Scene, ask_until,
    inference::{
        self,
        evaluation::{condition, create, until_phase, until_reason},
    },
    real, wait_for, wait_until_gone, within,
};

use crate::{
    claims::{self, folder},
    store::{Store, on_real_nodes, pods_of},
};

/// Two files of questions with as many questions each.
const SUBSETS: [&str; 2] = ["history", "physics"];
const QUESTIONS: usize = 60;
/// Of the questions of both files, as [`Answers::of`] plants them.
const BOTH_RIGHT: i64 = 90;
const ONLY_BASELINE: i64 = 18;
const ONLY_CANDIDATE: i64 = 5;
/// Answers of the candidate without a letter.
const UNPARSED: i64 = 3;

#[tokio::test]
async fn a_worse_model_regresses_and_its_server_is_gone_with_its_last_answer() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    plant(&folder(&scene));
    claims::claim(&scene, &folder(&scene)).await;
    // One model is served already, the other one gets a server.
    inference::create(&scene, "chat", on_real_nodes("pvc://models/base")).await;
    inference::until_ready(&scene, "chat").await;
    let spec = json!({
        "baselineModel": "aiinference/chat",
        "candidateModel": "pvc://models/new",
        "testSets": [{ "name": "ours", "dataset": "general_mcq", "claimName": "models", "path": "questions" }],
        "image": HARNESS_IMAGE,
        "server": { "image": ENGINE_IMAGE, "accelerator": PRODUCT },
        "scheduling": { "nodeSelector": { "local-cluster/real": "true" } },
        "output": store.upload("evaluations"),
    });
    create(&scene, "new", spec).await;

    let servers = scene.api::<AIInference>();
    wait_for(&servers, "new-candidate", "there", within(), |_: &AIInference| true).await;
    let evaluation = until_phase(&scene, "new", Phase::Succeeded).await;
    assert_eq!(servers.get_opt("new-candidate").await.expect("an answer"), None, "it holds a GPU");
    ask_until("no pod of the server", within(), async || {
        match pods_of(&scene, "new-candidate").await.len() {
            0 => Ok(()),
            pods => Err(format!("{pods} pods")),
        }
    })
    .await;
    has_the_planted_counts(evaluation.status.as_ref().expect("a status"));

    let uploaded = until_reason(&scene, "new", conditions::UPLOADED, reasons::UPLOADED).await;
    answers_are_in(&store, &uploaded);
    let claims = scene.api::<PersistentVolumeClaim>();
    claims.get("new-evaluation").await.expect("the claim of the answers");
    scene.api::<ModelEvaluation>().delete("new", &DeleteParams::default()).await.expect("it can be deleted");
    wait_until_gone(&claims, "new-evaluation", within()).await;
    // The garbage collector follows.
    ask_until("nothing is left", within(), async || match left_of(&scene, "new").await {
        left if left.is_empty() => Ok(()),
        left => Err(left.join(", ")),
    })
    .await;
    let chat = servers.get("chat").await.expect("the server that was there before");
    assert!(inference::is_ready(&chat) && pods_of(&scene, "chat").await.len() == 1, "{chat:?}");
}

/// Models, and the questions that they know.
fn plant(folder: &Path) {
    let questions = folder.join("questions");
    fs::create_dir_all(&questions).expect("a folder");
    let (mut base, mut new) = (json!({}), json!({}));
    for subset in SUBSETS {
        let mut lines = String::new();
        for number in 0..QUESTIONS {
            let Answers { right, of_base, of_new } = Answers::of(subset, number);
            let key = format!("{subset} {number}:");
            lines.push_str(&format!("{}\n", question(&key, right)));
            base[&key] = json!(of_base);
            new[&key] = json!(of_new);
        }
        fs::write(questions.join(format!("{subset}_val.jsonl")), lines).expect("questions");
    }
    for (name, answers) in [("base", base), ("new", new)] {
        let model = folder.join(name);
        fs::create_dir_all(&model).expect("a folder");
        fs::write(model.join("config.json"), "{}").expect("a model");
        fs::write(model.join("answers.json"), answers.to_string()).expect("a model");
    }
}

fn question(key: &str, right: char) -> Value {
    let text = format!("{key} which one?");
    json!({ "question": text, "A": "one", "B": "two", "C": "three", "answer": right.to_string() })
}

struct Answers {
    right: char,
    of_base: String,
    of_new: String,
}

impl Answers {
    /// The baseline is wrong in 12 of 120. Of these, the candidate is right in 5. It is wrong in 18 others, all of physics.
    fn of(subset: &str, number: usize) -> Self {
        let (right, wrong) = [('A', 'B'), ('B', 'C'), ('C', 'A')][number % 3];
        let say = |is_right: bool| format!("答案：{}", if is_right { right } else { wrong });
        let is_lost = subset == "physics" && number.is_multiple_of(3);
        let of_new = match number % 20 {
            // "I do not know".
            9 if subset == "history" => "我不知道".to_owned(),
            9 => say(false),
            _ => say(!is_lost),
        };
        Self { right, of_base: say(number % 10 != 9), of_new }
    }
}

fn has_the_planted_counts(status: &ModelEvaluationStatus) {
    assert_eq!(status.verdict.as_deref(), Some("Regressed"), "{status:?}");
    let all = (SUBSETS.len() * QUESTIONS) as i64;
    let runs: Vec<_> = status.runs.iter().map(|run| (&*run.side, run.questions, run.unparsed)).collect();
    assert_eq!(runs, [("baseline", all, 0), ("control", all, 0), ("candidate", all, UNPARSED)]);
    for run in &status.runs {
        assert_eq!((run.failed, run.unchecked, run.harness.as_deref()), (0, false, Some("evalscope 1.10.0")));
    }
    let [result] = &*status.results else { panic!("{:?}", status.results) };
    let counts = (result.n, result.both_right, result.only_baseline, result.only_candidate);
    assert_eq!(counts, (all, Some(BOTH_RIGHT), Some(ONLY_BASELINE), Some(ONLY_CANDIDATE)), "{result:?}");
    let control = status.null_control.as_ref().expect("a control");
    assert_eq!((control.n, control.flips), (all, Some(0)), "{control:?}");
}

fn answers_are_in(store: &Store<'_>, evaluation: &ModelEvaluation) {
    let uid = evaluation.metadata.uid.as_deref().expect("a uid");
    let sums = store.object(&format!("evaluations/{uid}/SHA256SUMS")).expect("the list of the answers");
    let sums = String::from_utf8(sums).expect("text");
    let reviews = sums.lines().filter(|line| line.contains("/reviews/model/general_mcq_"));
    assert_eq!(reviews.count(), 3 * SUBSETS.len(), "{sums}");
    let said = condition(evaluation, conditions::UPLOADED).expect("a condition");
    assert!(said.message.starts_with(&format!("{} files, ", sums.lines().count())), "{}", said.message);
    let artifacts = &evaluation.status.as_ref().expect("a status").artifacts;
    assert!(artifacts[0].uri.ends_with(&format!("/{uid}/SHA256SUMS")), "{artifacts:?}");
}

/// Names of what the evaluation has created.
async fn left_of(scene: &Scene<'_>, evaluation: &str) -> Vec<String> {
    let of = ListParams::default().labels(&format!("{}={evaluation}", labels::INSTANCE));
    let jobs = scene.api::<Job>().list_metadata(&of).await.expect("a list").items;
    let pods = scene.api::<Pod>().list_metadata(&of).await.expect("a list").items;
    let claims = scene.api::<PersistentVolumeClaim>().list_metadata(&of).await.expect("a list").items;
    let all = jobs.into_iter().map(|job| job.metadata);
    let all = all
        .chain(pods.into_iter().map(|pod| pod.metadata))
        .chain(claims.into_iter().map(|claim| claim.metadata));
    all.filter_map(|metadata| metadata.name).collect()
}

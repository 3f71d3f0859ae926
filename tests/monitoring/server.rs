//! The server that these tests and those of the scaler use does what they rely on.

use tests::monitoring::prometheus::{Prometheus, Scrape};

/// It scrapes itself, which needs its address.
async fn of_itself() -> Prometheus {
    let mut prometheus = Prometheus::start([]).await;
    let address = prometheus.url().replace("http://", "");
    prometheus.scrape_instead([Scrape::new("itself", [address]).with_label("namespace", "team")]).await;
    prometheus.until_scraped().await;
    prometheus
}

#[tokio::test]
async fn what_is_scraped_is_answered_with_its_labels() {
    let prometheus = of_itself().await;
    let up = prometheus.query("up{namespace=\"team\"}").await;
    let [up] = up.as_slice() else { panic!("{up:?}") };
    assert_eq!((up.labels["job"].as_str(), up.value), ("itself", 1.0));
    assert_eq!(prometheus.query("scalar(count(up))").await[0].value, 1.0);
    assert_eq!(prometheus.query("no_such_metric").await, []);
}

#[tokio::test]
async fn a_target_that_is_no_longer_named_is_no_longer_scraped() {
    let mut prometheus = of_itself().await;
    prometheus.scrape_instead([]).await;
    prometheus.until("the series have ended", "up", |up| up.is_empty()).await;
}

#[tokio::test]
#[should_panic(expected = "parse error")]
async fn a_query_that_is_not_valid_fails_with_the_message_of_the_server() {
    Prometheus::start([]).await.query("sum(").await;
}

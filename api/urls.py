from collections.abc import Mapping

from django.urls import URLPattern, path, re_path

from api.errors.problems import answer_not_found
from api.server.middleware import APP_NAME
from api.views import about, bulk, embeddings, jobs, models, moderations, rerank, tei
from api.views.base import ApiView
from api.views.file_batches import batches, files
from api.views.generation import audio, completions, responses


def make_alias_route(address: str, view: type[ApiView]) -> URLPattern:
    """Return the route of one more address of a view, which the OpenAPI document names at the view's main address."""
    return path(address, view.as_view(schema=None))


OF_OPENAI: Mapping[str, type[ApiView]] = {  # these addresses are below /openai, too
    "v1/chat/completions": completions.ChatView,
    "v1/chat/completions/<str:completion_id>": completions.StoredChatView,
    "v1/completions": completions.TextCompletionView,
    "v1/completions/<str:completion_id>": completions.StoredTextView,
    "v1/embeddings": embeddings.EmbeddingsView,
    "v1/rerank": rerank.RerankView,
    "v1/moderations": moderations.ModerationView,
    "v1/audio/transcriptions": audio.TranscriptionView,
    "v1/audio/speech": audio.SpeechView,
    "v1/responses": responses.ResponsesView,
    "v1/responses/<str:response_id>": responses.ResponseView,
    "v1/responses/<str:response_id>/cancel": responses.CancelResponseView,
    "v1/files": files.FilesView,
    "v1/files/<str:file_id>": files.FileView,
    "v1/files/<str:file_id>/content": files.FileContentView,
    "v1/batches": batches.BatchesView,
    "v1/batches/<str:batch_id>": batches.BatchView,
    "v1/batches/<str:batch_id>/cancel": batches.CancelBatchView,
    "v1/batches/<str:batch_id>/output": batches.BatchOutputView,
}
OF_TEI: Mapping[str, type[ApiView]] = {  # these addresses are below each model, too
    "embed": tei.EmbedView,
    "embed_all": tei.EmbedAllView,
    "similarity": tei.SimilarityView,
    "predict": tei.PredictView,
    "info": tei.InfoView,
}

app_name = APP_NAME  # by which the middleware recognizes these views
urlpatterns = [
    path("v1/models/<str:name>/v1/chat/completions", completions.ModelChatView.as_view()),
    path("v1/models/<str:name>/v1/completions", completions.ModelTextCompletionView.as_view()),
    path("v1/models/<str:name>/rerank", rerank.ModelRerankView.as_view()),
    make_alias_route("v1/models/<str:name>/v1/embeddings", embeddings.EmbeddingsView),
    make_alias_route("v1/models/<str:name>/v1/responses", responses.ResponsesView),
    path("v1/models/<str:name>", models.ModelView.as_view()),
    path("v1/models", models.ModelsView.as_view()),
    path("v1/jobs/bulk", bulk.BulksView.as_view()),
    path("v1/jobs/bulk/<str:bulk_id>", bulk.BulkView.as_view()),
    path("v1/jobs/bulk/<str:bulk_id>/cancel", bulk.CancelBulkView.as_view()),
    path("v1/jobs/wait", jobs.WaitView.as_view()),
    path("v1/jobs/<str:job_id>", jobs.JobView.as_view()),
    path("v1/jobs/<str:job_id>/output", jobs.OutputView.as_view()),
    path("v1/jobs/<str:job_id>/stream", jobs.StreamView.as_view()),
    path("v1/jobs/<str:job_id>/cancel", jobs.CancelView.as_view()),
    path("v1/jobs/<str:job_id>/retry", jobs.RetryView.as_view()),
    path("v1/jobs", jobs.JobsView.as_view()),
    *(path(address, view.as_view()) for address, view in (*OF_OPENAI.items(), *OF_TEI.items())),
    *(make_alias_route(f"openai/{address}", view) for address, view in OF_OPENAI.items()),
    *(make_alias_route(f"v1/models/<str:name>/{address}", view) for address, view in OF_TEI.items()),
    path("health", tei.HealthView.as_view()),
    path("v1/embed", embeddings.FirstCohereView.as_view()),
    path("v2/embed", embeddings.SecondCohereView.as_view()),
    make_alias_route("embeddings", embeddings.EmbeddingsView),
    path("models", models.InfinityModelsView.as_view()),
    path("rerank", rerank.RootRerankView.as_view()),
    make_alias_route("v2/rerank", rerank.RerankView),
    path("openai/v1/models/<str:name>", completions.OpenAIModelView.as_view()),
    path("openai/v1/models", completions.OpenAIModelsView.as_view()),
    path("v1/problems/<str:code>", about.ProblemView.as_view()),
    path("v1/schema", about.SchemaView.as_view()),
    path("v1/docs", about.DocsView.as_view()),
    make_alias_route("", tei.RootView),
    path("metrics", about.MetricsView.as_view()),
    path("healthz", about.LiveView.as_view()),
    path("readyz", about.ReadyView.as_view()),
    re_path(r"^(?:v1|v2|openai)(?:/|$)", answer_not_found),
]

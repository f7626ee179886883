"""No text of the store has a NUL, so what asks for one is answered before a query is made of it."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest

Handler = Callable[[HttpRequest], HttpResponse]


def refuse_nul(get_response: Handler) -> Handler:
    """Middleware: 400 for a NUL in the address of a page. PostgreSQL would refuse the query, and the page break.

    The API has its own words for it.
    """

    def answer(request: HttpRequest) -> HttpResponse:
        is_page = not request.path.startswith("/api/")
        if is_page and ("\0" in request.path or "%00" in request.META.get("QUERY_STRING", "")):
            return HttpResponseBadRequest("An address cannot hold a NUL character.", content_type="text/plain")
        return get_response(request)

    return answer

// The yardstick in Go: an ext_proc server that decides nothing, on grpc-go, the counterpart of bench/noop_server.py.
//
//	noop-grpc-go HEADERS_SOCKET BODY_SOCKET
//
// At the second Unix socket it asks for the whole body first, as our body mode does: the same messages go to and fro.
// Messages are parsed and built with generated code; the service is described by hand, so that any protoc-gen-go will
// do, whether it knows gRPC or not.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

const mostBytes = 32 << 20

// noop says "continue" to everything.
type noop struct {
	wantsBody bool
}

func (n *noop) process(stream grpc.ServerStream) error {
	for {
		request := new(extproc.ProcessingRequest)
		if err := stream.RecvMsg(request); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.SendMsg(n.answer(request)); err != nil {
			return err
		}
	}
}

func (n *noop) answer(request *extproc.ProcessingRequest) *extproc.ProcessingResponse {
	response := new(extproc.ProcessingResponse)
	goOn := new(extproc.CommonResponse)
	switch request.Request.(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		headers := &extproc.HeadersResponse{Response: goOn}
		response.Response = &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: headers}
		if n.wantsBody {
			response.ModeOverride = &filter.ProcessingMode{
				RequestHeaderMode:   filter.ProcessingMode_SEND,
				ResponseHeaderMode:  filter.ProcessingMode_SEND,
				RequestBodyMode:     filter.ProcessingMode_BUFFERED,
				ResponseTrailerMode: filter.ProcessingMode_SEND,
			}
		}
	case *extproc.ProcessingRequest_RequestBody:
		body := &extproc.BodyResponse{Response: goOn}
		response.Response = &extproc.ProcessingResponse_RequestBody{RequestBody: body}
	default:
		headers := &extproc.HeadersResponse{Response: goOn}
		response.Response = &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: headers}
	}
	return response
}

var service = grpc.ServiceDesc{
	ServiceName: "envoy.service.ext_proc.v3.ExternalProcessor",
	HandlerType: (*interface{})(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: "Process",
		Handler: func(server interface{}, stream grpc.ServerStream) error {
			return server.(*noop).process(stream)
		},
		ServerStreams: true,
		ClientStreams: true,
	}},
	Metadata: "envoy/service/ext_proc/v3/external_processor.proto",
}

func main() {
	if len(os.Args) != 3 {
		log.Fatalf("usage: %s HEADERS_SOCKET BODY_SOCKET", os.Args[0])
	}
	ended := make(chan error)
	for i, path := range os.Args[1:] {
		listener, err := net.Listen("unix", path)
		if err != nil {
			log.Fatal(err)
		}
		// Envoy pings as often as it is told to, also between requests.
		pings := keepalive.EnforcementPolicy{MinTime: time.Millisecond, PermitWithoutStream: true}
		server := grpc.NewServer(grpc.MaxRecvMsgSize(mostBytes), grpc.KeepaliveEnforcementPolicy(pings))
		server.RegisterService(&service, &noop{wantsBody: i == 1})
		go func() { ended <- server.Serve(listener) }()
	}
	fmt.Println(`"ready"`)
	log.Fatal(<-ended)
}
